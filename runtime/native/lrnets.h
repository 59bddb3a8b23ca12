/* lrnets run-time: the one C interface.
 *
 * A network is values (images in memory) and steps between them, prepared by the caller, who plans the memory. Nothing
 * here trusts the plan: lrn_create checks every size, place and pointer length before a step may run. There is no
 * global state; one network may be run from several threads at a time.
 */
#ifndef LRNETS_H
#define LRNETS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LRN_ABI 2 /* raised whenever a struct below changes, or what a step means */

enum lrn_type { LRN_FLOAT32, LRN_UINT8 };
enum lrn_kind { LRN_CONV, LRN_POOL, LRN_AFFINE, LRN_ADD, LRN_PLACE, LRN_RESHAPE, LRN_SOFTMAX, LRN_MULTIPLY, LRN_SIGNS, LRN_KINDS };
enum lrn_activation { LRN_NONE, LRN_CLAMP, LRN_LEAKY, LRN_SIGN, LRN_ABS };
enum lrn_pool { LRN_MAX, LRN_AVERAGE };

/* An image of height x width x channels in memory, channels innermost, inside a border of rows and columns that are
 * zero (or the zero point). A vector has height = width = 1. `offset` is its place in the memory of a batch of one, a
 * multiple of 64; a batch of n lies at n times that. A uint8 value q stands for (q - zero) * step. */
typedef struct lrn_value {
    int32_t type, height, width, channels, border_height, border_width;
    int64_t offset;
    float step;
    int32_t zero;
} lrn_value;

/* Convolution: weights[out][row][column][in / groups], int8 (bits 1: -1, +1; 2: -1, 0, +1; 8: any) or float32 (bits 32);
 *   y = activation(scale * sum + bias); on uint8 inputs, y = activation(float(sum w (q - zero)) * (step * scale) + bias).
 * Pool: windows[i] = (first, end, count) for the output rows, then for the output columns. Affine: scale and bias of each
 * channel. Add: input and other. Place: input's channels, rows or columns go into output at `axis` (0 channels, 1 rows, 2
 * columns) from `start` on. Reshape: the same numbers, both sides counted channel by channel; place by place is the output
 * if `axis` is 1, the input if it is 2. Softmax: along `axis`.
 * Multiply: input and other, whose sizes are the input's or 1. Signs: a convolution with weights of 1 bit of the input's
 * signs (+1 where x >= 0, else -1), its padding 0; sums are exact, and scale and bias are rounded once. The input needs no
 * border for it. */
typedef struct lrn_step {
    int32_t kind, input, other, output;
    int32_t kernel[2], stride[2], padding[2], dilation[2], groups;
    int32_t bits, pool, axis, start;
    int32_t activation;
    float low, high, slope;
    const void *weights;
    const float *scale, *bias;
    const int32_t *windows;
    int64_t weight_count, channel_count, window_count; /* lengths of the arrays above, in elements */
} lrn_step;

typedef struct lrn_network lrn_network;

/* LRN_ABI of the library. */
int lrn_abi(void);

/* Name of the i-th set of kernels that this CPU can run, the fastest first; NULL past the last. */
const char *lrn_kernels_name(int i);

/* Check a plan and copy all of it. Returns NULL and an explanation on failure. `kernels`: a name, or NULL for the best. */
lrn_network *lrn_create(const lrn_value *values, int32_t value_count, const lrn_step *steps, int32_t step_count,
                        int32_t input, int32_t output, int64_t arena_bytes, const char *kernels, char *message,
                        size_t message_size);

/* x: [batch][channels][height][width] floats -> y likewise; 0 is success, 1 out of memory or threads, 2 bad arguments. */
int lrn_run(lrn_network *network, const float *x, int64_t batch, float *y, int threads);

/* Bytes of weights, scales and biases as they are held in memory. */
int64_t lrn_bytes(const lrn_network *network);

void lrn_destroy(lrn_network *network);

#ifdef __cplusplus
}
#endif
#endif
