/* What the parts of the run-time share; not for users. */
#ifndef LRNETS_INTERNAL_H
#define LRNETS_INTERNAL_H

#include "lrnets.h"
#include "report.h"

#define PANEL 16         /* outputs that are computed together */
#define QUAD 4           /* inputs that lie together in a packed panel */
#define ALIGNMENT 64     /* bytes */
#define ROWS 4           /* outputs of a group of rows */
#define WINOGRAD_PLACES 16 /* 4 x 4 factors are made from a kernel of 3 x 3 */
#define TABLE_BLOCKS 96   /* of inputs, whose look-up tables are made at a time */
#define MOST_TILES 128    /* that are multiplied before their products are added up */

/* For the innermost loops: inlined, they would share the registers with their callers, and spill. */
#define SEPARATE __attribute__((noinline))

/* How the weights of a convolution lie in memory, and thereby how it can be computed.
 *   AS_THEY_ARE  panels of 16 outputs: floats or bytes
 *   CODES        the same for bytes of -1, 0, +1: 64 codes of 1 or 2 bits in 8 or 16 bytes
 *   PLANES       the same for floats of -1, 0, +1: for 8 groups of inputs, and each output, a word that says in its 8
 *                nibbles which inputs of each group count plus, and for 2 bits a second word for minus
 *   ROW_CODES    a vector in, a vector out, on bytes: 4 outputs at a time, the inputs of an output side by side
 *   BY_CHANNEL   each channel has a kernel of its own: [tap][channel], floats, or for bytes int32 */
enum layout { AS_THEY_ARE, CODES, PLANES, ROW_CODES, BY_CHANNEL };

/* A convolution made ready. Its outputs are cut into panels of 16 (within a group); the inputs of an output are `rows`
 * kernel rows of `runs` runs of `run` neighbouring elements each, counted as (row, run, element). */
typedef struct conv {
    int32_t groups, outputs, panels;     /* panels of one group; outputs of one group */
    int32_t rows, runs, run, padded_run; /* a run is padded to whole quads for bytes; floats are never read past it */
    int64_t row_stride, run_stride, group_stride; /* elements */
    int64_t depth;                       /* elements of a panel's lane: rows * runs * padded_run, whole quads */
    int32_t bits;                        /* 1, 2: packed; 8, 32: as they are; 16: int8 that needs wide products */
    int32_t layout;
    int32_t vector;                      /* one output place that sees one stretch of memory: a linear layer */
    int32_t by_channel;                  /* as many groups as channels on both sides: depthwise */
    int32_t winograd;                    /* on floats, by products of transformed tiles */
    int32_t pieces[2];                   /* of 3 x 3 at most, that its kernel is cut into, down and across: 1 or 2 */
    int32_t tiles[2];                    /* of 2 x 2 outputs, down and across */
    int64_t blocks;                      /* PLANES, ROW_CODES: stretches of inputs that lie together */
    int32_t flush;                       /* quads that 16-bit sums can take */
    int64_t panel_bytes;                 /* of a panel, or of 4 rows */
    uint8_t *panels_data;
    float *scale, *bias;                 /* [groups * panels * 16] */
    int32_t *zero_sum;                   /* zero * sum of an output's weights */
} conv;

/* A layer of binary weights on signs made ready: weights and what they meet are bits. */
typedef struct signs {
    int32_t groups, outputs, panels, channels; /* outputs, panels and channels of one group */
    int32_t size[2], kernel[2];                /* of the input, as it is seen */
    int32_t places;                            /* of the output, gathered at a time */
    int64_t group_bytes, row_bytes, image_bytes; /* of a place's bits, a row's, an image's with its border */
    int64_t words;                             /* of 64 bits that an output meets */
    uint64_t *panels_data;                     /* [panel][word][16 outputs] */
    int32_t *ones;                             /* [tap][output]: weights of +1 at a tap */
    float *scale, *bias;
} signs;

typedef struct step {
    lrn_step plan;
    conv conv;
    signs signs;
    int32_t phases; /* all threads meet after each */
    int32_t *windows;
    float *scale, *bias;
} step;

/* What one thread of a team works with. */
typedef struct share {
    uint8_t *arena, *scratch; /* of all; its own */
    uint8_t *transformed;     /* of all: tiles between the two phases of a Winograd step */
    int64_t images;
    int thread, threads;
} share;

typedef struct kernels {
    const char *name;
    int (*supported)(void);
    int32_t lookup_group; /* inputs whose sums fill a look-up table: 3 or 4 */
    int32_t row_bytes;    /* of ROW_CODES that are computed at a time */
    int32_t winograd;     /* whether it pays */
    int32_t together;     /* panels that a tile of pixels meets at a time */
    void (*load)(const lrn_value *value, const share *mine, const float *x);
    void (*store)(const lrn_value *value, const share *mine, float *y);
    void (*run)(const struct lrn_network *network, const step *step, const share *mine, int phase);
} kernels;

struct lrn_network {
    const kernels *kernels;
    lrn_value *values;
    step *steps;
    int32_t value_count, step_count, input, output;
    int64_t arena_bytes, transformed_bytes, scratch_bytes, weight_bytes; /* the first two for one image */
    struct pool *pool;
};

extern const kernels lrn_plain;
#if defined(__x86_64__)
extern const kernels lrn_avx2, lrn_avx512;
#elif defined(__aarch64__)
extern const kernels lrn_neon;
#endif

static inline int64_t element_bytes(const lrn_value *value) { return value->type == LRN_FLOAT32 ? 4 : 1; }

static inline int64_t pitch(const lrn_value *value) { /* elements from a row to the next */
    return ((int64_t)value->width + 2 * value->border_width) * value->channels;
}

static inline int64_t image_bytes(const lrn_value *value) { /* of one image with its border, whole alignments */
    int64_t bytes = pitch(value) * ((int64_t)value->height + 2 * value->border_height) * element_bytes(value);
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static inline int64_t numbers_of(const lrn_value *value) { return (int64_t)value->height * value->width * value->channels; }

static inline uint8_t *image_of(const lrn_value *value, uint8_t *arena, int64_t images, int64_t image) {
    return arena + value->offset * images + image * image_bytes(value);
}

static inline int64_t pixel_of(const lrn_value *value, int64_t row, int64_t column) { /* elements from the image's start */
    return (row + value->border_height) * pitch(value) + (column + value->border_width) * value->channels;
}

static inline int64_t whole(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

/* A piece of a kernel for Winograd: its size, the taps of the kernel that are stored before it, and its number. Pieces count
 * as so many times the channels, so numbered that upper ones lie together, and left ones: upper right, upper left, lower
 * left, lower right. */
typedef struct piece {
    int64_t rows, columns, before, number;
} piece;

static inline piece piece_of(const conv *c, const int32_t kernel[2], int64_t down, int64_t across) {
    const int64_t rows = kernel[0] - 3 * down < 3 ? kernel[0] - 3 * down : 3;
    const int64_t columns = kernel[1] - 3 * across < 3 ? kernel[1] - 3 * across : 3;
    return (piece){rows, columns, 3 * (down * kernel[1] + across * rows), down ? c->pieces[1] + across : c->pieces[1] - 1 - across};
}

static inline int64_t winograd_channels(const conv *c) { return c->group_stride * c->pieces[0] * c->pieces[1]; }

static inline int64_t block_inputs(const conv *c, const kernels *k) { /* of PLANES and ROW_CODES */
    return c->layout == PLANES ? 8 * k->lookup_group : 8 / c->bits * k->row_bytes;
}

int lrn_prepare_conv(const report *report, lrn_network *network, step *step);

int lrn_check_signs(const report *report, const lrn_step *step, const lrn_value *in, const lrn_value *out);
int lrn_prepare_signs(const report *report, lrn_network *network, step *step);
void lrn_forget_signs(signs *signs);

#endif
