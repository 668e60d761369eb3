/* Norms and rotations of single rows, in a fixed order of adding. */
#include "rows.h"

static float sum_of(__m512 sums) {
  __m256 half = _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps(sums, 1));
  __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
}

static __m512 scale_of(float squares, int32_t size, float eps) {
  __m128 mean = _mm_set_ss(squares / (float)size + eps);
  return _mm512_set1_ps(1.0f / _mm_cvtss_f32(_mm_sqrt_ss(mean)));
}

static __m256i finite(__m256i values) {
  __m256i exponent = _mm256_set1_epi16(0x7f80);
  return _mm256_maskz_mov_epi16(
      _mm256_cmpneq_epi16_mask(_mm256_and_si256(values, exponent), exponent), values);
}

static __m512 widened(const uint16_t *values) {
  return pcg_widen(_mm256_loadu_si256((const __m256i *)values));
}

void pcg_norm(const float *row, const float *weight, int32_t size, float eps, uint16_t *out) {
  __m512 squares = _mm512_setzero_ps();
  for (int32_t at = 0; at < size; at += 16) {
    __m512 values = _mm512_loadu_ps(row + at);
    squares = _mm512_fmadd_ps(values, values, squares);
  }
  __m512 scale = scale_of(sum_of(squares), size, eps);
  for (int32_t at = 0; at < size; at += 16) {
    __m512 value = _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(row + at), scale),
                                 _mm512_loadu_ps(weight + at));
    _mm256_storeu_si256((__m256i *)(out + at), pcg_narrow(value));
  }
}

void pcg_widen_row(const uint16_t *row, int32_t size, float *out) {
  for (int32_t at = 0; at < size; at += 16) {
    _mm512_storeu_ps(out + at, widened(row + at));
  }
}

void pcg_turn_head(const uint16_t *head, const float *weight, const float *turn, int32_t size,
                   float eps, uint16_t *out) {
  __m512 scale = _mm512_set1_ps(1.0f);
  if (weight != NULL) {
    __m512 squares = _mm512_setzero_ps();
    for (int32_t at = 0; at < size; at += 16) {
      __m512 values = widened(head + at);
      squares = _mm512_fmadd_ps(values, values, squares);
    }
    scale = scale_of(sum_of(squares), size, eps);
  }
  for (int32_t at = 0; at < size; at += 16) {
    __m512 values = widened(head + at), turns = _mm512_loadu_ps(turn + at);
    if (weight != NULL) {
      values = _mm512_mul_ps(_mm512_mul_ps(values, scale), _mm512_loadu_ps(weight + at));
    }
    __m512 crossed = _mm512_mul_ps(_mm512_permute_ps(values, 0xb1), _mm512_movehdup_ps(turns));
    values = _mm512_fmaddsub_ps(values, _mm512_moveldup_ps(turns), crossed);
    _mm256_storeu_si256((__m256i *)(out + at), finite(pcg_narrow(values)));
  }
}

void pcg_copy_finite(const uint16_t *values, int32_t size, uint16_t *out) {
  for (int32_t at = 0; at < size; at += 16) {
    _mm256_storeu_si256((__m256i *)(out + at),
                        finite(_mm256_loadu_si256((const __m256i *)(values + at))));
  }
}
