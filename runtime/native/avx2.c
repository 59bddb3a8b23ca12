/* Kernels for x86-64 with AVX2 and FMA. */
#include "internal.h"

#include <immintrin.h>

#define KERNELS_NAME "avx2"
#define KERNELS_TABLE lrn_avx2
#define TILE 6

static int supported(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

/* 6 pixels x 16 outputs in 12 registers; a broadcast input meets 2 loads of weights. */
static void sums_of_floats(const conv *c, const float *panel, const float *const *pixels, float sums[TILE][PANEL]) {
    __m256 low[TILE], high[TILE];
    for (int p = 0; p < TILE; p++) low[p] = high[p] = _mm256_setzero_ps();
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t run = 0; run < c->runs; run++) {
            const int64_t start = row * c->row_stride + run * c->run_stride;
            const float *x0 = pixels[0] + start, *x1 = pixels[1] + start, *x2 = pixels[2] + start;
            const float *x3 = pixels[3] + start, *x4 = pixels[4] + start, *x5 = pixels[5] + start;
            for (int64_t k = 0; k < c->run; k++, panel += PANEL) {
                const __m256 a = _mm256_load_ps(panel), b = _mm256_load_ps(panel + 8);
#define MEET(p)                                                   \
    do {                                                          \
        const __m256 x = _mm256_broadcast_ss(x##p + k);           \
        low[p] = _mm256_fmadd_ps(x, a, low[p]);                   \
        high[p] = _mm256_fmadd_ps(x, b, high[p]);                 \
    } while (0)
                MEET(0);
                MEET(1);
                MEET(2);
                MEET(3);
                MEET(4);
                MEET(5);
#undef MEET
            }
        }
    for (int p = 0; p < TILE; p++) {
        _mm256_storeu_ps(sums[p], low[p]);
        _mm256_storeu_ps(sums[p] + 8, high[p]);
    }
}

static inline __m256i four_bytes(const uint8_t *x) {
    int32_t quad;
    __builtin_memcpy(&quad, x, sizeof quad);
    return _mm256_set1_epi32(quad);
}

/* Weights are small, so products of pairs are added up in 16 bits, and go into 32 before they could overflow. */
static void sums_of_bytes(const conv *c, const int8_t *panel, const uint8_t *const *pixels, int32_t sums[TILE][PANEL]) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i low[TILE], high[TILE];
    for (int p = 0; p < TILE; p++) low[p] = high[p] = _mm256_setzero_si256();
    int left = c->flush;
    for (int p = 0; p < TILE; p++)
        for (int o = 0; o < PANEL; o++) sums[p][o] = 0;
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t run = 0; run < c->runs; run++) {
            const int64_t start = row * c->row_stride + run * c->run_stride;
            for (int64_t k = 0; k < c->padded_run;) {
                int64_t quads = (c->padded_run - k) / QUAD;
                quads = quads < left ? quads : left;
                left -= (int)quads;
                for (const int64_t end = k + quads * QUAD; k < end; k += QUAD, panel += QUAD * PANEL) {
                    const __m256i a = _mm256_load_si256((const __m256i *)panel);
                    const __m256i b = _mm256_load_si256((const __m256i *)(panel + 32));
#define MEET(p)                                                                      \
    do {                                                                             \
        const __m256i x = four_bytes(pixels[p] + start + k);                         \
        low[p] = _mm256_add_epi16(low[p], _mm256_maddubs_epi16(x, a));               \
        high[p] = _mm256_add_epi16(high[p], _mm256_maddubs_epi16(x, b));             \
    } while (0)
                    MEET(0);
                    MEET(1);
                    MEET(2);
                    MEET(3);
                    MEET(4);
                    MEET(5);
#undef MEET
                }
                if (left == 0 || (k == c->padded_run && row == c->rows - 1 && run == c->runs - 1)) {
                    for (int p = 0; p < TILE; p++) {
                        __m256i *to = (__m256i *)sums[p];
                        _mm256_storeu_si256(to, _mm256_add_epi32(_mm256_loadu_si256(to), _mm256_madd_epi16(low[p], ones)));
                        _mm256_storeu_si256(to + 1, _mm256_add_epi32(_mm256_loadu_si256(to + 1), _mm256_madd_epi16(high[p], ones)));
                        low[p] = high[p] = _mm256_setzero_si256();
                    }
                    left = c->flush;
                }
            }
        }
}

/* Any int8 weights: products in 16 bits would not fit, so both sides are widened first. */
static void sums_of_bytes_wide(const conv *c, const int8_t *panel, const uint8_t *const *pixels, int32_t sums[TILE][PANEL]) {
    for (int p = 0; p < TILE; p++) {
        const int8_t *weights = panel;
        __m256i pairs[4];
        for (int i = 0; i < 4; i++) pairs[i] = _mm256_setzero_si256();
        for (int64_t row = 0; row < c->rows; row++)
            for (int64_t run = 0; run < c->runs; run++) {
                const uint8_t *x = pixels[p] + row * c->row_stride + run * c->run_stride;
                for (int64_t k = 0; k < c->padded_run; k += QUAD, weights += QUAD * PANEL) {
                    const __m256i wide = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(four_bytes(x + k)));
                    for (int i = 0; i < 4; i++) { /* 4 outputs x 4 inputs */
                        const __m256i w = _mm256_cvtepi8_epi16(_mm_load_si128((const __m128i *)(weights + 16 * i)));
                        pairs[i] = _mm256_add_epi32(pairs[i], _mm256_madd_epi16(wide, w));
                    }
                }
            }
        int32_t halves[32];
        for (int i = 0; i < 4; i++) _mm256_storeu_si256((__m256i *)(halves + 8 * i), pairs[i]);
        for (int o = 0; o < PANEL; o++) sums[p][o] = halves[2 * o] + halves[2 * o + 1];
    }
}

#include "kernels.inc"
