"use strict";
/* The network: C code compiled to WebAssembly. An image's bytes go in; probabilities and feature maps come out. */

function bytesOf(base64) {
  return Uint8Array.from(atob(base64.trim()), (character) => character.charCodeAt(0));
}

/* Bytes (channels, height, width) as the network's input; see lrnets_runtime/images.py. */
function prepare(bytes, { kind, mean, deviation }, channels) {
  const x = Float32Array.from(bytes, (byte) => byte / 255);
  if (kind === "each") return standardized(x);
  const plane = x.length / channels;
  return x.map((value, at) => {
    const channel = Math.floor(at / plane);
    const centred = mean ? Math.fround(value - Math.fround(mean[channel])) : value;
    return deviation ? centred / Math.fround(deviation[channel]) : centred;
  });
}

function standardized(x) {
  const mean = x.reduce((sum, value) => sum + value, 0) / x.length;
  const variance = x.reduce((sum, value) => sum + (value - mean) ** 2, 0) / x.length;
  const deviation = Math.max(Math.sqrt(variance), 1 / (255 * Math.sqrt(x.length)));
  return x.map((value) => (value - mean) / deviation);
}

/* Left, top, width and height of what becomes the `wanted` [width, height], in pixels of a picture of this size: all of it,
 * or with a `shorterSide` the middle of what has so many on its shorter side; see lrnets_runtime/images.py. */
function pictureBox(size, wanted, shorterSide) {
  if (!shorterSide) return [0, 0, ...size];
  const scaled = size.map((side) => Math.floor((side * shorterSide) / Math.min(...size)));
  const units = size.map((side, i) => side / scaled[i]);
  const half = (n) => (n % 4 === 1 ? (n - 1) / 2 : Math.round(n / 2)); // to even, as Python has it
  const start = scaled.map((side, i) => half(side - wanted[i]) * units[i]);
  return [...start, ...wanted.map((side, i) => side * units[i])];
}

function softmax(y) {
  const largest = Math.max(...y);
  const powers = Array.from(y, (value) => Math.exp(value - largest));
  const sum = powers.reduce((a, b) => a + b, 0);
  return powers.map((power) => power / sum);
}

/* facts: what the page knows of its network, see facts.py. */
async function loadNetwork(wasm, facts) {
  const { instance } = await WebAssembly.instantiate(wasm, { env: { expf: Math.exp } });
  const c = instance.exports;
  const [channels] = facts.shape;
  const floats = (place, count) => new Float32Array(c.memory.buffer, place, count);
  const input = floats(c.input(), facts.shape.reduce((a, b) => a * b));
  const output = floats(c.output(), facts.classes.length);
  const maps = facts.maps && floats(c.maps(), facts.maps.shape.reduce((a, b) => a * b));
  return {
    run(bytes) {
      input.set(prepare(bytes, facts.preparation, channels));
      const start = performance.now();
      c.run();
      const milliseconds = performance.now() - start;
      if (maps) c.run_first();
      const outputs = Array.from(output);
      return { outputs, probabilities: facts.softmax ? outputs : softmax(outputs), maps, milliseconds };
    },
  };
}
