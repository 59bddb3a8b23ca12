/* Kernels in plain C, for any CPU: the slow and obvious twin of the others. */
#include "internal.h"

#define KERNELS_NAME "plain"
#define KERNELS_TABLE lrn_plain
#define TILE 4
#define LOOKUP_GROUP 3
#define ROW_BYTES 16
#define WINOGRAD 0 /* sums in the obvious order */

static int supported(void) { return 1; }

static void sums_of_floats(const conv *c, const float *panel, const float *const *pixels, float sums[TILE][PANEL]) {
    for (int p = 0; p < TILE; p++)
        for (int o = 0; o < PANEL; o++) sums[p][o] = 0;
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t run = 0; run < c->runs; run++)
            for (int64_t k = 0; k < c->run; k++, panel += PANEL)
                for (int p = 0; p < TILE; p++) {
                    const float x = pixels[p][row * c->row_stride + run * c->run_stride + k];
                    for (int o = 0; o < PANEL; o++) sums[p][o] += x * panel[o];
                }
}

/* Panels of bytes lie in quads: [8 outputs][4 inputs], twice. */
static void sums_of_bytes(const conv *c, const int8_t *panel, const uint8_t *const *pixels, int32_t sums[TILE][PANEL]) {
    for (int p = 0; p < TILE; p++)
        for (int o = 0; o < PANEL; o++) sums[p][o] = 0;
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t run = 0; run < c->runs; run++)
            for (int64_t k = 0; k < c->padded_run; k += QUAD, panel += QUAD * PANEL)
                for (int p = 0; p < TILE; p++) {
                    const uint8_t *x = pixels[p] + row * c->row_stride + run * c->run_stride + k;
                    for (int o = 0; o < PANEL; o++)
                        for (int i = 0; i < QUAD; i++)
                            sums[p][o] += (k + i < c->run ? x[i] : 0) * panel[QUAD * o + i];
                }
}

#define sums_of_bytes_wide sums_of_bytes

#include "kernels.inc"
