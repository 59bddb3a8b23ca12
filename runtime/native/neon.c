/* Kernels for 64-bit Arm, which always has NEON. */
#include "internal.h"

#include <arm_neon.h>

#define KERNELS_NAME "neon"
#define KERNELS_TABLE lrn_neon
#define TILE 6
#define LOOKUP_GROUP 3
#define ROW_BYTES 16
#define WINOGRAD 1
#define HAS_SIGNS

static int supported(void) { return 1; }

/* 6 pixels x 16 outputs in 24 of 32 registers. */
static SEPARATE void sums_of_floats(const conv *c, const float *panel, const float *const *pixels, float sums[TILE][PANEL]) {
    float32x4_t sum[TILE][4];
    for (int p = 0; p < TILE; p++)
        for (int i = 0; i < 4; i++) sum[p][i] = vdupq_n_f32(0);
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t run = 0; run < c->runs; run++) {
            const int64_t start = row * c->row_stride + run * c->run_stride;
            for (int64_t k = 0; k < c->run; k++, panel += PANEL) {
                const float32x4_t w[4] = {vld1q_f32(panel), vld1q_f32(panel + 4), vld1q_f32(panel + 8), vld1q_f32(panel + 12)};
                for (int p = 0; p < TILE; p++)
                    for (int i = 0; i < 4; i++) sum[p][i] = vfmaq_n_f32(sum[p][i], w[i], pixels[p][start + k]);
            }
        }
    for (int p = 0; p < TILE; p++)
        for (int i = 0; i < 4; i++) vst1q_f32(sums[p] + 4 * i, sum[p][i]);
}

/* Bytes and weights are widened to 16 bits; an output's four products are added to the four lanes of its sum. */
static SEPARATE void sums_of_bytes(const conv *c, const int8_t *panel, const uint8_t *const *pixels, int32_t sums[TILE][PANEL]) {
    for (int p = 0; p < TILE; p++) {
        const int8_t *weights = panel;
        int32x4_t sum[PANEL];
        for (int o = 0; o < PANEL; o++) sum[o] = vdupq_n_s32(0);
        for (int64_t row = 0; row < c->rows; row++)
            for (int64_t run = 0; run < c->runs; run++) {
                const uint8_t *x = pixels[p] + row * c->row_stride + run * c->run_stride;
                for (int64_t k = 0; k < c->padded_run; k += QUAD, weights += QUAD * PANEL) {
                    uint32_t quad;
                    __builtin_memcpy(&quad, x + k, sizeof quad);
                    const int16x4_t wide = vreinterpret_s16_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(quad)))));
                    for (int o = 0; o < PANEL; o += 2) {
                        const int16x8_t w = vmovl_s8(vld1_s8(weights + QUAD * o));
                        sum[o] = vmlal_s16(sum[o], wide, vget_low_s16(w));
                        sum[o + 1] = vmlal_s16(sum[o + 1], wide, vget_high_s16(w));
                    }
                }
            }
        for (int o = 0; o < PANEL; o++) sums[p][o] = vaddvq_s32(sum[o]);
    }
}

#define sums_of_bytes_wide sums_of_bytes

static inline int byte_of_signs(const float *x) {
    static const uint32_t places[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    const uint32x4_t low = vandq_u32(vcgeq_f32(vld1q_f32(x), vdupq_n_f32(0)), vld1q_u32(places));
    const uint32x4_t high = vandq_u32(vcgeq_f32(vld1q_f32(x + 4), vdupq_n_f32(0)), vld1q_u32(places + 4));
    return (int)vaddvq_u32(vorrq_u32(low, high));
}

/* 2 outputs to a register, a word of each; a byte takes the ones of 31 words. */
static SEPARATE void count_differing(const uint64_t *panel, const uint64_t *places, int64_t words, int tile, int32_t counts[2][PANEL]) {
    for (int p = 0; p < tile; p++, places += words) {
        uint64x2_t total[PANEL / 2];
        for (int i = 0; i < PANEL / 2; i++) total[i] = vdupq_n_u64(0);
        const uint64_t *w = panel;
        for (int64_t first = 0; first < words; first += 31) {
            const int64_t end = words - first < 31 ? words : first + 31;
            uint8x16_t sum[PANEL / 2];
            for (int i = 0; i < PANEL / 2; i++) sum[i] = vdupq_n_u8(0);
            for (int64_t k = first; k < end; k++, w += PANEL) {
                const uint64x2_t x = vdupq_n_u64(places[k]);
                for (int i = 0; i < PANEL / 2; i++)
                    sum[i] = vaddq_u8(sum[i], vcntq_u8(vreinterpretq_u8_u64(veorq_u64(x, vld1q_u64(w + 2 * i)))));
            }
            for (int i = 0; i < PANEL / 2; i++) total[i] = vpadalq_u32(total[i], vpaddlq_u16(vpaddlq_u8(sum[i])));
        }
        for (int i = 0; i < PANEL / 2; i++) {
            counts[p][2 * i] = (int32_t)vgetq_lane_u64(total[i], 0);
            counts[p][2 * i + 1] = (int32_t)vgetq_lane_u64(total[i], 1);
        }
    }
}

#include "kernels.inc"
