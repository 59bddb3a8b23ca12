/* What the parts of the run-time share; not for users. */
#ifndef LRNETS_INTERNAL_H
#define LRNETS_INTERNAL_H

#include "lrnets.h"

#define PANEL 16         /* outputs that are computed together */
#define QUAD 4           /* inputs that lie together in a packed panel */
#define ALIGNMENT 64     /* bytes */

/* A convolution made ready. Its outputs are cut into panels of 16 (within a group); the inputs of an output are `rows`
 * kernel rows of `runs` runs of `run` neighbouring elements each. A panel holds weights in the order of (row, run,
 * element), 16 outputs beside each other: packed as 1 or 2 bits, or as they are. */
typedef struct conv {
    int32_t groups, outputs, panels;     /* panels of one group; outputs of one group */
    int32_t rows, runs, run, padded_run; /* a run is padded to whole quads for bytes; floats are never read past it */
    int64_t row_stride, run_stride, group_stride; /* elements */
    int64_t depth;                       /* elements of a panel's lane: rows * runs * padded_run, whole quads */
    int32_t bits;                        /* 1, 2: packed; 8, 32: as they are; 16: int8 that needs wide products */
    int32_t flush;                       /* quads that 16-bit sums can take */
    int64_t panel_bytes;
    uint8_t *panels_data;                /* groups * panels of them */
    float *scale, *bias;                 /* [groups * panels * 16] */
    int32_t *zero_sum;                   /* zero * sum of an output's weights */
} conv;

typedef struct step {
    lrn_step plan;
    conv conv;
    int32_t *windows;
    float *scale, *bias;
} step;

typedef struct kernels {
    const char *name;
    int (*supported)(void);
    void (*load)(const lrn_value *value, uint8_t *memory, const float *x, int64_t images);
    void (*store)(const lrn_value *value, const uint8_t *memory, float *y, int64_t images);
    /* thread `thread` of `threads` does its share of a step on `images` images; scratch holds one panel, expanded */
    void (*run)(const struct lrn_network *network, const step *step, uint8_t *arena, int64_t images, void *scratch,
                int thread, int threads);
} kernels;

struct lrn_network {
    const kernels *kernels;
    lrn_value *values;
    step *steps;
    int32_t value_count, step_count, input, output;
    int64_t arena_bytes, scratch_bytes, weight_bytes;
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

static inline uint8_t *image_of(const lrn_value *value, uint8_t *arena, int64_t images, int64_t image) {
    return arena + value->offset * images + image * image_bytes(value);
}

static inline int64_t pixel_of(const lrn_value *value, int64_t row, int64_t column) { /* elements from the image's start */
    return (row + value->border_height) * pitch(value) + (column + value->border_width) * value->channels;
}

#endif
