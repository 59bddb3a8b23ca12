/* All that the network's C code takes from libm; the page hands in JavaScript's. */
__attribute__((import_module("env"), import_name("expf"))) float expf(float x);
