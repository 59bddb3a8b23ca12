#if HAS_SOFTMAX
#include <math.h>
#endif
#include <stdint.h>

/* Results are those of docs/packed-format.md of lrnets, to the bit between values held as bytes, as long as no
 * multiplication is fused with an addition and no rounding is optimised away. */
#ifdef __FAST_MATH__
#error "compile this file without -ffast-math, which takes its rounding away"
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__) && !defined(__STRICT_ANSI__)
#pragma GCC optimize("fp-contract=off") /* as -std=c99 has it already */
#endif

/* How a value is held: as float32 if step is 0, else as bytes q that stand for (q - zero) * step. */
typedef struct {
    float step;
    float inverse; /* 1 / step */
    int32_t zero;
} held;

#if HAS_GET
static float get(const held *from, const void *in, int32_t at) {
    if (from->step > 0.0f) return (float)(((const uint8_t *)in)[at] - from->zero) * from->step;
    return ((const float *)in)[at];
}
#endif

/* What becomes of a number once it is computed: its activation, then the way it is held. */
enum { LOW = 1, HIGH = 2, LEAKY = 4, SIGN = 8, ABS = 16 };
typedef struct {
    int32_t activation; /* LOW and HIGH say which bounds bind */
    float low, high, slope;
    held as;
} result;

#if HAS_PUT
/* clip(rint(y / step) + zero, 0, 255), half to even; NaN gives zero. */
static uint8_t to_byte(const held *as, float y) {
    const float scaled = y * as->inverse;
    float shifted;
    int32_t q;
    if (scaled >= 256.0f) return 255;
    if (scaled <= -256.0f) return 0;
    if (!(scaled < 256.0f)) return (uint8_t)as->zero;
    shifted = scaled + 12582912.0f; /* 1.5 * 2^23, where float32 has whole numbers only */
    q = (int32_t)(shifted - 12582912.0f) + as->zero;
    return (uint8_t)(q < 0 ? 0 : q > 255 ? 255 : q);
}

static void put(const result *made, void *out, int32_t at, float y) {
    if ((made->activation & LOW) && y < made->low) y = made->low;
    if ((made->activation & HIGH) && y > made->high) y = made->high;
    if ((made->activation & LEAKY) && y < 0.0f) y *= made->slope;
    if (made->activation & SIGN) y = y >= 0.0f ? 1.0f : -1.0f; /* -1 for NaN */
    if ((made->activation & ABS) && y < 0.0f) y = -y;
    if (made->as.step > 0.0f)
        ((uint8_t *)out)[at] = to_byte(&made->as, y);
    else
        ((float *)out)[at] = y;
}
#endif

#if HAS_CONV || HAS_CONV_POOL
/* A convolution; a linear layer is one whose kernel is as wide as its input. */
enum { BINARY, TERNARY, INT8, FLOAT32 };
enum { BYTES, FLOATS, FLOAT_WEIGHTS, DEQUANTIZED, LEVELS };
typedef struct {
    int32_t coding; /* of the weights */
    int32_t sum;    /* which of the sums below */
    const void *weights;
    const float *scale, *bias; /* for each output channel; 0 if all are 1 (or alike) or 0 */
    float levels[2];           /* what weights of -1 and +1 stand for, in a sum of LEVELS */
    float factor;              /* scale of all channels, times the step of bytes against whole weights */
    int32_t channels, groups, depth; /* output channels; groups of them; input channels in a group */
    int32_t size[2], places[2];      /* height and width of the input and of the output */
    int32_t kernel[2], stride[2], padding[2], dilation[2];
    int32_t channel_step, place_step; /* between numbers of the output */
    held from;
    result made;
} conv_layer;

/* Where a window lies, and which part of its kernel meets the input. */
typedef struct {
    int32_t start[2], first[2], end[2];
} taps;

static void find_taps(const conv_layer *l, int side, int32_t place, taps *t) {
    const int32_t dilation = l->dilation[side], start = place * l->stride[side] - l->padding[side];
    const int32_t end = (l->size[side] - start + dilation - 1) / dilation;
    t->start[side] = start;
    t->first[side] = start < 0 ? (dilation - 1 - start) / dilation : 0;
    t->end[side] = end < l->kernel[side] ? end : l->kernel[side];
}

#if HAS_BINARY
/* Eight weights in a byte: bit i is 1 for +1, 0 for -1. */
static void unpack_binary(const uint8_t *packed, int32_t first, int32_t count, int8_t *weights) {
    int32_t i;
    for (i = 0; i < count; i++) {
        const int32_t at = first + i;
        weights[i] = (int8_t)((packed[at / 8] >> at % 8 & 1) * 2 - 1);
    }
}

#endif
#if HAS_TERNARY
/* Five weights in a byte: digit k to the base of 3 is weight k, plus 1. b * 171 >> 9 is b / 3 for every byte b: a
 * multiplication a weight, once for each output channel, instead of a table of 1215 bytes. */
static void unpack_ternary(const uint8_t *packed, int32_t first, int32_t count, int8_t *weights) {
    int32_t at = -(first % 5);
    packed += first / 5;
    while (at < count) {
        uint32_t digits = *packed++;
        int k;
        for (k = 0; k < 5 && at < count; k++, at++) {
            const uint32_t third = digits * 171u >> 9;
            if (at >= 0) weights[at] = (int8_t)((int32_t)(digits - third * 3u) - 1);
            digits = third;
        }
    }
}

#endif
#if HAS_SUM_BYTES
/* Whole weights times bytes less their zero point, exactly. */
static int32_t sum_bytes(const conv_layer *l, const taps *t, const uint8_t *x, const int8_t *w) {
    const int32_t zero = l->from.zero, dilation = l->dilation[1];
    int32_t sum = 0, c, i, j, at;
    for (c = 0; c < l->depth; c++, x += l->size[0] * l->size[1], w += l->kernel[0] * l->kernel[1])
        for (i = t->first[0]; i < t->end[0]; i++) {
            const int8_t *row = w + i * l->kernel[1];
            at = (t->start[0] + i * l->dilation[0]) * l->size[1] + t->start[1] + t->first[1] * dilation;
            for (j = t->first[1]; j < t->end[1]; j++, at += dilation) sum += row[j] * (x[at] - zero);
        }
    return sum;
}

#endif
#if HAS_SUM_FLOATS
/* Whole weights times float32. */
static float sum_floats(const conv_layer *l, const taps *t, const float *x, const int8_t *w) {
    const int32_t dilation = l->dilation[1];
    int32_t c, i, j, at;
    float sum = 0.0f;
    for (c = 0; c < l->depth; c++, x += l->size[0] * l->size[1], w += l->kernel[0] * l->kernel[1])
        for (i = t->first[0]; i < t->end[0]; i++) {
            const int8_t *row = w + i * l->kernel[1];
            at = (t->start[0] + i * l->dilation[0]) * l->size[1] + t->start[1] + t->first[1] * dilation;
            for (j = t->first[1]; j < t->end[1]; j++, at += dilation) sum += (float)row[j] * x[at];
        }
    return sum;
}

#endif
#if HAS_SUM_LEVELS
/* Weights of two levels and 0, times float32 or what bytes stand for. */
static float sum_levels(const conv_layer *l, const taps *t, const void *x, int32_t plane, const int8_t *w) {
    const float levels[3] = {l->levels[0], 0.0f, l->levels[1]};
    const int32_t dilation = l->dilation[1];
    int32_t c, i, j, at;
    float sum = 0.0f;
    for (c = 0; c < l->depth; c++, plane += l->size[0] * l->size[1], w += l->kernel[0] * l->kernel[1])
        for (i = t->first[0]; i < t->end[0]; i++) {
            const int8_t *row = w + i * l->kernel[1];
            at = plane + (t->start[0] + i * l->dilation[0]) * l->size[1] + t->start[1] + t->first[1] * dilation;
            for (j = t->first[1]; j < t->end[1]; j++, at += dilation) sum += levels[row[j] + 1] * get(&l->from, x, at);
        }
    return sum;
}

#endif
#if HAS_SUM_FLOAT_WEIGHTS || HAS_SUM_DEQUANTIZED
/* Weights in float32, times float32 or what bytes stand for. */
static float sum_float_weights(const conv_layer *l, const taps *t, const void *x, const float *w) {
    const int32_t dilation = l->dilation[1];
    int32_t c, i, j, at, plane = 0;
    float sum = 0.0f;
    for (c = 0; c < l->depth; c++, plane += l->size[0] * l->size[1], w += l->kernel[0] * l->kernel[1])
        for (i = t->first[0]; i < t->end[0]; i++) {
            const float *row = w + i * l->kernel[1];
            at = plane + (t->start[0] + i * l->dilation[0]) * l->size[1] + t->start[1] + t->first[1] * dilation;
#if HAS_SUM_DEQUANTIZED
            for (j = t->first[1]; j < t->end[1]; j++, at += dilation) sum += row[j] * get(&l->from, x, at);
#else
            for (j = t->first[1]; j < t->end[1]; j++, at += dilation) sum += row[j] * ((const float *)x)[at];
#endif
        }
    return sum;
}

#endif
/* The weights of an output channel; `room` is for them if they are packed. */
static const void *weights_of(const conv_layer *l, int32_t channel, void *room) {
    const int32_t count = l->depth * l->kernel[0] * l->kernel[1], first = channel * count;
    switch (l->coding) {
#if HAS_BINARY
        case BINARY: unpack_binary(l->weights, first, count, room); break;
#endif
#if HAS_TERNARY
        case TERNARY: unpack_ternary(l->weights, first, count, room); break;
#endif
#if HAS_INT8
        case INT8: return (const int8_t *)l->weights + first;
#endif
#if HAS_FLOAT32
        case FLOAT32: return (const float *)l->weights + first;
#endif
    }
    return room;
}

/* Row i of an output channel, to `out` from place `at` on. */
static void conv_row(const conv_layer *l, int32_t channel, int32_t i, const void *in, const void *weights, void *out,
                     int32_t at) {
    const float scale = l->scale ? l->factor * l->scale[channel] : l->factor;
    const int32_t first = channel / (l->channels / l->groups) * l->depth * l->size[0] * l->size[1];
    int32_t j;
    taps t;
    find_taps(l, 0, i, &t);
    for (j = 0; j < l->places[1]; j++, at += l->place_step) {
        float y = 0.0f;
        find_taps(l, 1, j, &t);
        switch (l->sum) {
#if HAS_SUM_BYTES
            case BYTES: y = (float)sum_bytes(l, &t, (const uint8_t *)in + first, weights); break;
#endif
#if HAS_SUM_FLOATS
            case FLOATS: y = sum_floats(l, &t, (const float *)in + first, weights); break;
#endif
#if HAS_SUM_FLOAT_WEIGHTS
            case FLOAT_WEIGHTS: y = sum_float_weights(l, &t, (const float *)in + first, weights); break;
#endif
#if HAS_SUM_LEVELS
                    case LEVELS: y = sum_levels(l, &t, in, first, weights); break;
#endif
#if HAS_SUM_DEQUANTIZED
            case DEQUANTIZED: y = sum_float_weights(l, &t, (const uint8_t *)in + first, weights); break;
#endif
        }
        y *= scale;
        if (l->bias) y += l->bias[channel];
        put(&l->made, out, at, y);
    }
}

#endif
#if HAS_CONV
static void run_conv(const conv_layer *l, const void *in, void *out, void *room) {
    int32_t channel, i;
    for (channel = 0; channel < l->channels; channel++) {
        const void *weights = weights_of(l, channel, room);
        for (i = 0; i < l->places[0]; i++)
            conv_row(l, channel, i, in, weights, out, channel * l->channel_step + i * l->places[1] * l->place_step);
    }
}

#endif
#if HAS_POOL || HAS_CONV_POOL
/* The maximum or average of each window, channel by channel; maxima are taken of the values as they are held. */
enum { MAX_BYTES, MAX_FLOATS, AVERAGE_BYTES, AVERAGE_FLOATS };
typedef struct {
    int32_t size, places; /* of the input and of the output */
    int32_t kernel, stride, padding; /* a kernel of 0 is adaptive */
    int32_t count_padding;
} pool_side;
typedef struct {
    int32_t kind, channels;
    int32_t band; /* rows of the input that are in memory: row i is where i % band is */
    pool_side sides[2];
    held from;
    result made;
} pool_layer;
typedef struct {
    int32_t first, end, count;
} window;

static window find_window(const pool_side *s, int32_t place) {
    const int32_t start = place * s->stride - s->padding, stop = start + s->kernel, padded = s->size + s->padding;
    window w;
#if HAS_ADAPTIVE
    if (s->kernel == 0) {
        w.first = place * s->size / s->places;
        w.end = ((place + 1) * s->size + s->places - 1) / s->places;
        w.count = w.end - w.first;
        return w;
    }
#endif
    w.first = start < 0 ? 0 : start;
    w.end = stop < s->size ? stop : s->size;
    w.count = s->count_padding ? (stop < padded ? stop : padded) - start : w.end - w.first;
    return w;
}

#if HAS_MAX_BYTES
static uint8_t largest_byte(const pool_layer *l, const uint8_t *x, window rows, window columns) {
    uint8_t largest = 0;
    int32_t i, j;
    for (i = rows.first; i < rows.end; i++) {
        const uint8_t *row = x + i % l->band * l->sides[1].size;
        for (j = columns.first; j < columns.end; j++)
            if (row[j] > largest) largest = row[j];
    }
    return largest;
}

#endif
#if HAS_MAX_FLOATS
static float largest_float(const pool_layer *l, const float *x, window rows, window columns) {
    float largest = x[rows.first % l->band * l->sides[1].size + columns.first];
    int32_t i, j;
    for (i = rows.first; i < rows.end; i++) {
        const float *row = x + i % l->band * l->sides[1].size;
        for (j = columns.first; j < columns.end; j++)
            if (row[j] > largest || row[j] != row[j]) largest = row[j]; /* NaN stays */
    }
    return largest;
}

#endif
#if HAS_AVERAGE_BYTES
static float average_bytes(const pool_layer *l, const uint8_t *x, window rows, window columns) {
    const float share = l->from.step / (float)(rows.count * columns.count);
    int32_t sum = 0, i, j;
    for (i = rows.first; i < rows.end; i++) {
        const uint8_t *row = x + i % l->band * l->sides[1].size;
        for (j = columns.first; j < columns.end; j++) sum += row[j] - l->from.zero;
    }
    return (float)sum * share;
}

#endif
#if HAS_AVERAGE_FLOATS
static float average_floats(const pool_layer *l, const float *x, window rows, window columns) {
    float sum = 0.0f;
    int32_t i, j;
    for (i = rows.first; i < rows.end; i++) {
        const float *row = x + i % l->band * l->sides[1].size;
        for (j = columns.first; j < columns.end; j++) sum += row[j];
    }
    return sum / (float)(rows.count * columns.count);
}

#endif
/* One row of windows of one channel, from `in` to place `at` of the output on. */
static void pool_row(const pool_layer *l, window rows, const void *in, void *out, int32_t at) {
    int32_t j;
    for (j = 0; j < l->sides[1].places; j++, at++) {
        const window columns = find_window(&l->sides[1], j);
        switch (l->kind) {
#if HAS_MAX_BYTES
            case MAX_BYTES: ((uint8_t *)out)[at] = largest_byte(l, in, rows, columns); break;
#endif
#if HAS_MAX_FLOATS
            case MAX_FLOATS: ((float *)out)[at] = largest_float(l, in, rows, columns); break;
#endif
#if HAS_AVERAGE_BYTES
            case AVERAGE_BYTES: put(&l->made, out, at, average_bytes(l, in, rows, columns)); break;
#endif
#if HAS_AVERAGE_FLOATS
            case AVERAGE_FLOATS: put(&l->made, out, at, average_floats(l, in, rows, columns)); break;
#endif
        }
    }
}

#endif
#if HAS_POOL
static void run_pool(const pool_layer *l, const void *in, void *out) {
    const int32_t bytes = l->from.step > 0.0f ? 1 : 4, plane = l->sides[0].size * l->sides[1].size * bytes;
    int32_t channel, i, at = 0;
    for (channel = 0; channel < l->channels; channel++)
        for (i = 0; i < l->sides[0].places; i++, at += l->sides[1].places)
            pool_row(l, find_window(&l->sides[0], i), (const uint8_t *)in + channel * plane, out, at);
}

#endif
#if HAS_CONV_POOL
/* A convolution and the pool that alone reads it: of what the convolution gives, no more is ever in memory than the
 * rows of one channel that lie in a row of windows. No number is computed twice. */
typedef struct {
    conv_layer conv;
    pool_layer pool;
    int32_t band_bytes; /* the room begins with that; decoded weights come after */
} conv_pool_layer;

static void run_conv_pool(const conv_pool_layer *l, const void *in, void *out, void *room) {
    int32_t channel, i, row, at = 0;
    for (channel = 0; channel < l->conv.channels; channel++) {
        const void *weights = weights_of(&l->conv, channel, (uint8_t *)room + l->band_bytes);
        row = 0; /* the next that is not there yet */
        for (i = 0; i < l->pool.sides[0].places; i++, at += l->pool.sides[1].places) {
            const window rows = find_window(&l->pool.sides[0], i);
            for (row = row < rows.first ? rows.first : row; row < rows.end; row++)
                conv_row(&l->conv, channel, row, in, weights, room, row % l->pool.band * l->conv.places[1]);
            pool_row(&l->pool, rows, room, out, at);
        }
    }
}

#endif
#if HAS_AFFINE
/* scale * x + bias, a number for each channel; or an activation alone. */
typedef struct {
    int32_t channels, count; /* numbers in a channel */
    const float *scale, *bias;
    held from;
    result made;
} affine_layer;

static void run_affine(const affine_layer *l, const void *in, void *out) {
    int32_t channel, i, at = 0;
    for (channel = 0; channel < l->channels; channel++)
        for (i = 0; i < l->count; i++, at++) {
            float y = get(&l->from, in, at);
            if (l->scale) y *= l->scale[channel];
            if (l->bias) y += l->bias[channel];
            put(&l->made, out, at, y);
        }
}

#endif
#if HAS_ADD
typedef struct {
    int32_t count;
    held from[2];
    result made;
} add_layer;

static void run_add(const add_layer *l, const void *one, const void *other, void *out) {
    int32_t i;
    for (i = 0; i < l->count; i++) {
        const float x = get(&l->from[0], one, i), y = get(&l->from[1], other, i);
        put(&l->made, out, i, x + y);
    }
}

#endif
#if HAS_MULTIPLY
/* The second factor is the same along dimensions whose step is 0. */
typedef struct {
    int32_t size[3], steps[3];
    held from[2];
    result made;
} multiply_layer;

static void run_multiply(const multiply_layer *l, const void *one, const void *other, void *out) {
    int32_t i, j, k, at = 0;
    for (i = 0; i < l->size[0]; i++)
        for (j = 0; j < l->size[1]; j++)
            for (k = 0; k < l->size[2]; k++, at++) {
                const float x = get(&l->from[0], one, at);
                put(&l->made, out, at, x * get(&l->from[1], other, i * l->steps[0] + j * l->steps[1] + k * l->steps[2]));
            }
}

#endif
#if HAS_COPY
/* From one way of holding numbers to another, and to places apart: one part of a concatenation. */
typedef struct {
    int32_t times, count, first, step; /* `count` numbers, so many `times`; where they go, and how far apart */
    held from;
    result made;
} copy_layer;

static void run_copy(const copy_layer *l, const void *in, void *out) {
    int32_t i, j;
    for (i = 0; i < l->times; i++)
        for (j = 0; j < l->count; j++)
            put(&l->made, out, l->first + i * l->step + j, get(&l->from, in, i * l->count + j));
}

#endif
#if HAS_SOFTMAX
/* exp(x - max) over its sum; numbers that belong together are `step` apart. */
typedef struct {
    int32_t times, count, step;
    held from;
    result made;
} softmax_layer;

static void run_softmax(const softmax_layer *l, const void *in, void *out) {
    int32_t i, j, k;
    for (i = 0; i < l->times; i++)
        for (j = 0; j < l->step; j++) {
            const int32_t first = i * l->count * l->step + j;
            float largest = get(&l->from, in, first), sum = 0.0f;
            for (k = 1; k < l->count; k++) {
                const float x = get(&l->from, in, first + k * l->step);
                if (x > largest) largest = x;
            }
            for (k = 0; k < l->count; k++) sum += expf(get(&l->from, in, first + k * l->step) - largest);
            for (k = 0; k < l->count; k++) {
                const int32_t at = first + k * l->step;
                put(&l->made, out, at, expf(get(&l->from, in, at) - largest) / sum);
            }
        }
}

#endif
