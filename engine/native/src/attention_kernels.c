/* Attention's arithmetic on tiles, in AVX-512 with bf16 products. */
#include "attention_kernels.h"

#define ALWAYS static inline __attribute__((always_inline))

/* Transposes 4 x 4 pairs in each lane. */
ALWAYS void transpose_lanes(__m512i *rows) {
  __m512i low01 = _mm512_unpacklo_epi32(rows[0], rows[1]),
          high01 = _mm512_unpackhi_epi32(rows[0], rows[1]);
  __m512i low23 = _mm512_unpacklo_epi32(rows[2], rows[3]),
          high23 = _mm512_unpackhi_epi32(rows[2], rows[3]);
  rows[0] = _mm512_unpacklo_epi64(low01, low23);
  rows[1] = _mm512_unpackhi_epi64(low01, low23);
  rows[2] = _mm512_unpacklo_epi64(high01, high23);
  rows[3] = _mm512_unpackhi_epi64(high01, high23);
}

void pcg_pack_keys(const uint16_t *keys, size_t stride, int32_t num_dims, uint16_t *packed) {
  /* Of two vectors, lanes 0 and 2 of both, and lanes 1 and 3, so that keys come in order. */
  const __m512i even = _mm512_set_epi64(13, 12, 5, 4, 9, 8, 1, 0),
                odd = _mm512_set_epi64(15, 14, 7, 6, 11, 10, 3, 2);
  for (int32_t dim = 0; dim < num_dims; dim += 16) {
    __m512i rows[8]; /* sixteen dimensions of keys 0 and 8, 1 and 9, ... */
#pragma GCC unroll 8
    for (int32_t index = 0; index < 8; index++) {
      const uint16_t *from = keys + (size_t)index * stride + dim;
      __m512i both = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)from));
      rows[index] =
          _mm512_inserti64x4(both, _mm256_loadu_si256((const __m256i *)(from + 8 * stride)), 1);
    }
    transpose_lanes(rows);
    transpose_lanes(rows + 4);
    __m512i *to = (__m512i *)(packed + (size_t)dim * PCG_KEYS);
#pragma GCC unroll 4
    for (int32_t pair = 0; pair < 4; pair++) {
      _mm512_store_si512(to + pair, _mm512_permutex2var_epi64(rows[pair], even, rows[pair + 4]));
      _mm512_store_si512(to + pair + 4, _mm512_permutex2var_epi64(rows[pair], odd, rows[pair + 4]));
    }
  }
}

void pcg_pack_values(const uint16_t *values, size_t stride, int32_t num_dims, uint16_t *packed) {
  /* Words 0, 16, 1, 17, ... */
  __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  __m512i order =
      _mm512_or_si512(lanes, _mm512_slli_epi32(_mm512_add_epi32(lanes, _mm512_set1_epi32(16)), 16));
  for (int32_t key = 0; key < PCG_KEYS; key += 2) {
    const uint16_t *even = values + (size_t)key * stride, *odd = even + stride;
    for (int32_t dim = 0; dim < num_dims; dim += 16) {
      __m512i both = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(even + dim)));
      both = _mm512_inserti64x4(both, _mm256_loadu_si256((const __m256i *)(odd + dim)), 1);
      _mm512_store_si512(packed + ((size_t)key * num_dims + 2 * (size_t)dim),
                         _mm512_permutexvar_epi16(order, both));
    }
  }
}

/* The operands of a product in tiles: pairs of bf16 of `a` are spread to all lanes, vectors of `b`
   lie `step` apart from one pair to the next and `jump` apart side by side. In numbers of bf16, of
   floats for `c`. */
typedef struct {
  const uint16_t *a;
  size_t a_stride;
  const uint16_t *b;
  size_t step, jump, num_pairs;
  float *c;
  size_t c_stride;
} product;

ALWAYS __m512bh spread(const uint16_t *pair) {
  int32_t both;
  __builtin_memcpy(&both, pair, sizeof both);
  return (__m512bh)_mm512_set1_epi32(both);
}

ALWAYS void multiply(const product *p, const int num_rows, const int num_vectors) {
  __m512 sums[PCG_TILE][PCG_SIDE];
  const uint16_t *a = p->a, *b = p->b;
  size_t a_stride = p->a_stride, jump = p->jump, step = p->step;
#pragma GCC unroll 6
  for (int row = 0; row < num_rows; row++) {
#pragma GCC unroll 4
    for (int vector = 0; vector < num_vectors; vector++) {
      sums[row][vector] = _mm512_setzero_ps();
    }
  }
  for (size_t pair = 0; pair < p->num_pairs; pair++) {
    __m512bh right[PCG_SIDE];
#pragma GCC unroll 4
    for (int vector = 0; vector < num_vectors; vector++) {
      right[vector] = (__m512bh)_mm512_load_si512(b + (size_t)vector * jump);
    }
#pragma GCC unroll 6
    for (int row = 0; row < num_rows; row++) {
      __m512bh left = spread(a + (size_t)row * a_stride);
#pragma GCC unroll 4
      for (int vector = 0; vector < num_vectors; vector++) {
        sums[row][vector] = _mm512_dpbf16_ps(sums[row][vector], left, right[vector]);
      }
    }
    a += 2;
    b += step;
  }
#pragma GCC unroll 6
  for (int row = 0; row < num_rows; row++) {
#pragma GCC unroll 4
    for (int vector = 0; vector < num_vectors; vector++) {
      _mm512_store_ps(p->c + (size_t)row * p->c_stride + 16 * vector, sums[row][vector]);
    }
  }
}

#define MULTIPLY(rows, vectors)                                                                    \
  static void multiply_##rows##_##vectors(const product *p) { multiply(p, rows, vectors); }
#define MULTIPLY_ROWS(rows) MULTIPLY(rows, 1) MULTIPLY(rows, 2) MULTIPLY(rows, 3) MULTIPLY(rows, 4)
MULTIPLY_ROWS(1)
MULTIPLY_ROWS(2)
MULTIPLY_ROWS(3)
MULTIPLY_ROWS(4)
MULTIPLY_ROWS(5)
MULTIPLY_ROWS(6)

static void multiply_tile(const product *p, int32_t num_rows, int32_t num_vectors) {
#define ROWS(rows)                                                                                 \
  {                                                                                                \
    multiply_##rows##_1, multiply_##rows##_2, multiply_##rows##_3, multiply_##rows##_4             \
  }
  static void (*const kernels[PCG_TILE][PCG_SIDE])(const product *) = {ROWS(1), ROWS(2), ROWS(3),
                                                                       ROWS(4), ROWS(5), ROWS(6)};
#undef ROWS
  kernels[num_rows - 1][num_vectors - 1](p);
}

void pcg_score(const uint16_t *query, int32_t num_rows, int32_t num_dims, const uint16_t *packed,
               pcg_seen blocks, float *scores) {
  size_t jump = (size_t)num_dims * PCG_KEYS;
  product p = {.a = query,
               .a_stride = (size_t)num_dims,
               .step = 2 * PCG_KEYS,
               .jump = jump,
               .num_pairs = (size_t)num_dims / 2};
  p.c_stride = PCG_SCORES;
  for (int32_t block = blocks.first; block < blocks.end; block += PCG_SIDE) {
    p.b = packed + (size_t)block * jump;
    p.c = scores + (size_t)block * PCG_KEYS;
    multiply_tile(&p, num_rows, pcg_least(PCG_SIDE, blocks.end - block));
  }
}

void pcg_sum_values(const uint16_t *weights, int32_t num_rows, int32_t num_dims,
                    const uint16_t *packed, pcg_seen blocks, float *sums, size_t stride) {
  size_t step = 2 * (size_t)num_dims;
  product p = {.a = weights + (size_t)blocks.first * PCG_KEYS,
               .a_stride = PCG_WEIGHTS,
               .step = step,
               .jump = 2 * PCG_KEYS};
  p.num_pairs = (size_t)(blocks.end - blocks.first) * PCG_KEYS / 2;
  p.c_stride = stride;
  const uint16_t *values = packed + (size_t)blocks.first * PCG_KEYS / 2 * step;
  for (int32_t dim = 0; dim < num_dims; dim += 16 * PCG_SIDE) {
    p.b = values + 2 * (size_t)dim;
    p.c = sums + dim;
    multiply_tile(&p, num_rows, pcg_least(PCG_SIDE, (num_dims - dim) / 16));
  }
}

enum {
  CHAINS = 4
}; /* vectors whose powers are computed in step: one alone waits for its own steps */

/* 2^x with a relative error under 2e-7, exactly 1 of 0; x is at most a little above 0, and below
   -125 counts as -125. Minimax polynomial on [-1/2, 1/2]. Rounds by an addition, and scales by one
   to the exponent: the units that multiply have enough to do. */
ALWAYS void powers_of_2(__m512 *x, const int count) {
  static const float factors[] = {0.009671512991189957f, 0.05550733581185341f, 0.24022242426872253f,
                                  0.6931470036506653f, 1.0f};
  const __m512 magic = _mm512_set1_ps(12582912.0f); /* 1.5 * 2^23 */
  __m512 shifted[CHAINS], rest[CHAINS], sum[CHAINS];
#pragma GCC unroll 4
  for (int index = 0; index < count; index++) {
    x[index] = _mm512_max_ps(x[index], _mm512_set1_ps(-125.0f));
    shifted[index] = _mm512_add_ps(x[index], magic);
  }
#pragma GCC unroll 4
  for (int index = 0; index < count; index++) {
    rest[index] = _mm512_sub_ps(x[index], _mm512_sub_ps(shifted[index], magic));
    sum[index] = _mm512_set1_ps(0.001326472614891827f);
  }
#pragma GCC unroll 5
  for (int power = 0; power < 5; power++) {
#pragma GCC unroll 4
    for (int index = 0; index < count; index++) {
      sum[index] = _mm512_fmadd_ps(sum[index], rest[index], _mm512_set1_ps(factors[power]));
    }
  }
#pragma GCC unroll 4
  for (int index = 0; index < count; index++) {
    __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted[index]), 23);
    x[index] = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(sum[index]), exponent));
  }
}

/* Which lanes of the sixteen keys from `key` on a row sees. */
ALWAYS __mmask16 seen_lanes(pcg_seen seen, int32_t key) {
  int32_t first = pcg_least(pcg_greatest(seen.first - key, 0), 16),
          end = pcg_least(pcg_greatest(seen.end - key, 0), 16);
  return (__mmask16)(((1u << end) - 1u) & ~((1u << first) - 1u));
}

float pcg_greatest_score(const float *scores, pcg_seen seen) {
  const __m512 none = _mm512_set1_ps(PCG_NOTHING);
  int32_t key = seen.first & ~(PCG_KEYS - 1), full_end = seen.end & ~(PCG_KEYS - 1);
  __m512 even = none, odd = none;
  if (key < seen.first) {
    even = _mm512_mask_loadu_ps(none, seen_lanes(seen, key), scores + key);
    key += PCG_KEYS;
  }
  for (; key + 2 * PCG_KEYS <= full_end; key += 2 * PCG_KEYS) {
    even = _mm512_max_ps(even, _mm512_load_ps(scores + key));
    odd = _mm512_max_ps(odd, _mm512_load_ps(scores + key + PCG_KEYS));
  }
  for (; key < seen.end; key += PCG_KEYS) {
    odd = _mm512_max_ps(odd, _mm512_mask_loadu_ps(none, seen_lanes(seen, key), scores + key));
  }
  return _mm512_reduce_max_ps(_mm512_max_ps(even, odd));
}

/* The sum of sixteen floats, halves first. */
ALWAYS float total_of(__m512 values) {
  __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(values), _mm512_extractf32x8_ps(values, 1));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* The weights of the keys from `key` on, as many as `chains` vectors hold, stored and added to two
   sums. */
ALWAYS void weigh(const float *scores, float scale, float most, uint16_t *weights, __m512 *sums,
                  const int chains, const __mmask16 *lanes) {
  __m512 power[CHAINS];
#pragma GCC unroll 4
  for (int index = 0; index < chains; index++) {
    power[index] = _mm512_fmsub_ps(_mm512_load_ps(scores + index * PCG_KEYS), _mm512_set1_ps(scale),
                                   _mm512_set1_ps(most));
  }
  powers_of_2(power, chains);
#pragma GCC unroll 4
  for (int index = 0; index < chains; index++) {
    if (lanes != NULL) {
      power[index] = _mm512_maskz_mov_ps(lanes[index], power[index]);
    }
    sums[index % 2] = _mm512_add_ps(sums[index % 2], power[index]);
  }
#pragma GCC unroll 2
  for (int index = 0; index < chains; index += 2) {
    _mm512_store_si512(weights + index * PCG_KEYS,
                       (__m512i)_mm512_cvtne2ps_pbh(power[index + 1], power[index]));
  }
}

float pcg_weigh(const float *scores, float scale, float most, pcg_seen seen, pcg_seen blocks,
                uint16_t *weights) {
  __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  int32_t key = blocks.first * PCG_KEYS & ~(2 * PCG_KEYS - 1), end = blocks.end * PCG_KEYS;
  while (key < end) {
    if (key >= seen.first && key + CHAINS * PCG_KEYS <= seen.end) {
      weigh(scores + key, scale, most, weights + key, sums, CHAINS, NULL);
      key += CHAINS * PCG_KEYS;
    } else {
      const __mmask16 lanes[2] = {seen_lanes(seen, key), seen_lanes(seen, key + PCG_KEYS)};
      weigh(scores + key, scale, most, weights + key, sums, 2, lanes);
      key += 2 * PCG_KEYS;
    }
  }
  return total_of(_mm512_add_ps(sums[0], sums[1]));
}

void pcg_merge(float *sums, float *most, float *total, const float *new_sums, float new_most,
               float new_total, int32_t num_dims) {
  if (new_total == 0.0f) {
    return;
  }
  float now = *most > new_most ? *most : new_most;
  __m512 powers =
      _mm512_mask_mov_ps(_mm512_set1_ps(*most - now), 2, _mm512_set1_ps(new_most - now));
  powers_of_2(&powers, 1);
  __m128 factors = _mm512_castps512_ps128(powers);
  __m512 keep = _mm512_broadcastss_ps(factors),
         add = _mm512_broadcastss_ps(_mm_movehdup_ps(factors));
  for (int32_t dim = 0; dim < num_dims; dim += 16) {
    __m512 added = _mm512_mul_ps(_mm512_load_ps(new_sums + dim), add);
    _mm512_store_ps(sums + dim, _mm512_fmadd_ps(_mm512_load_ps(sums + dim), keep, added));
  }
  __m128 new_part = _mm_mul_ss(_mm_set_ss(new_total), _mm512_castps512_ps128(add));
  *total = _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(*total), _mm512_castps512_ps128(keep), new_part));
  *most = now;
}

void pcg_finish(const float *sums, float total, int32_t num_dims, uint16_t *out) {
  __m512 factor = _mm512_set1_ps(1.0f / total);
  for (int32_t dim = 0; dim < num_dims; dim += 16) {
    _mm256_storeu_si256((__m256i *)(out + dim),
                        pcg_narrow(_mm512_mul_ps(_mm512_load_ps(sums + dim), factor)));
  }
}
