/* What a page calls: where the numbers are, and how to run the network. Compiled beside the code that export writes. */
#include "network.h"

#include <stddef.h>

#define EXPORT(name) __attribute__((export_name(name)))

static float input[NETWORK_INPUT_SIZE], output[NETWORK_OUTPUT_SIZE], arena[NETWORK_ARENA_BYTES / sizeof(float)];

EXPORT("input") float *input_place(void) { return input; }
EXPORT("output") float *output_place(void) { return output; }
EXPORT("run") void run(void) { network_run(input, output, arena); }

#ifdef HAS_FIRST
/* The same network up to its first convolution: the feature maps. */
#include "first.h"

static float maps[FIRST_OUTPUT_SIZE], first_arena[FIRST_ARENA_BYTES / sizeof(float)];

EXPORT("maps") float *maps_place(void) { return maps; }
EXPORT("run_first") void run_first(void) { first_run(input, maps, first_arena); }
#endif

/* A compiler may call these for loops and copies, even where there is no libc. */
void *memset(void *to, int value, size_t count) {
    unsigned char *at = to;
    while (count--) *at++ = (unsigned char)value;
    return to;
}

void *memcpy(void *to, const void *from, size_t count) {
    unsigned char *at = to;
    const unsigned char *source = from;
    while (count--) *at++ = *source++;
    return to;
}
