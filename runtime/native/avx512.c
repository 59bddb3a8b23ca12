/* Kernels for x86-64 with AVX-512 (F, BW, VL) and VNNI. */
#include "internal.h"

#ifdef LRNETS_SIMULATE /* on a CPU without AVX-512: SIMDe computes the same in plain C, slowly */
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#else
#include <immintrin.h>
#endif

#define KERNELS_NAME "avx512"
#define KERNELS_TABLE lrn_avx512
#define TILE 8

static int supported(void) {
#ifdef LRNETS_SIMULATE
    return 1;
#endif
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

/* 8 pixels x 16 outputs, a register each: enough to keep both multipliers busy while a sum is on its way. */
static void sums_of_floats(const conv *c, const float *panel, const float *const *pixels, float sums[TILE][PANEL]) {
    __m512 sum[TILE];
    for (int p = 0; p < TILE; p++) sum[p] = _mm512_setzero_ps();
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t run = 0; run < c->runs; run++) {
            const int64_t start = row * c->row_stride + run * c->run_stride;
            for (int64_t k = 0; k < c->run; k++, panel += PANEL) {
                const __m512 w = _mm512_load_ps(panel);
                for (int p = 0; p < TILE; p++)
                    sum[p] = _mm512_fmadd_ps(_mm512_set1_ps(pixels[p][start + k]), w, sum[p]);
            }
        }
    for (int p = 0; p < TILE; p++) _mm512_storeu_ps(sums[p], sum[p]);
}

/* vpdpbusd adds four products to 32 bits without saturation, whatever the weights. */
static void sums_of_bytes(const conv *c, const int8_t *panel, const uint8_t *const *pixels, int32_t sums[TILE][PANEL]) {
    __m512i sum[TILE];
    for (int p = 0; p < TILE; p++) sum[p] = _mm512_setzero_si512();
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t run = 0; run < c->runs; run++) {
            const int64_t start = row * c->row_stride + run * c->run_stride;
            for (int64_t k = 0; k < c->padded_run; k += QUAD, panel += QUAD * PANEL) {
                const __m512i w = _mm512_load_si512((const void *)panel);
                for (int p = 0; p < TILE; p++) {
                    int32_t quad;
                    __builtin_memcpy(&quad, pixels[p] + start + k, sizeof quad);
                    sum[p] = _mm512_dpbusd_epi32(sum[p], _mm512_set1_epi32(quad), w);
                }
            }
        }
    for (int p = 0; p < TILE; p++) _mm512_storeu_si512((void *)sums[p], sum[p]);
}

#define sums_of_bytes_wide sums_of_bytes

#include "kernels.inc"
