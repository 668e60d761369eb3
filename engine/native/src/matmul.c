/* Packed products: one accumulator for each output, over the inputs in ascending order whatever the
   number of rows. */
#include "matmul.h"

#include "vector.h"

#include <string.h>

enum {
  TILE = 6, /* rows computed side by side: 24 accumulators, 4 vectors of weights and one of inputs
               fill the registers */
  BLOCK = 16 * TILE /* rows of an item: while they are computed, a panel stays in the cache */
};

void pcg_pack(const uint16_t *weight, int32_t num_out, int32_t num_in, uint16_t *panels) {
  for (int32_t first = 0; first < num_out; first += PCG_PANEL) {
    for (int32_t pair = 0; pair < num_in / 2; pair++) {
      for (int32_t column = 0; column < PCG_PANEL; column++, panels += 2) {
        if (first + column < num_out) {
          memcpy(panels, weight + (size_t)(first + column) * num_in + 2 * pair, 4);
        } else {
          memset(panels, 0, 4);
        }
      }
    }
  }
}

/* `count` is known where this is inlined, so that the sums are registers. */
static inline __attribute__((always_inline)) void sum_tile(int count, const uint16_t *rows,
                                                           size_t num_in, const uint16_t *panel,
                                                           __m512 sums[TILE][4]) {
#pragma GCC unroll 6
  for (int row = 0; row < count; row++) {
#pragma GCC unroll 4
    for (int part = 0; part < 4; part++) {
      sums[row][part] = _mm512_setzero_ps();
    }
  }
  for (size_t at = 0; at < num_in; at += 2, panel += 2 * PCG_PANEL) {
    __m512bh weights[4];
#pragma GCC unroll 4
    for (int part = 0; part < 4; part++) {
      weights[part] = (__m512bh)_mm512_load_si512(panel + 32 * part);
    }
#pragma GCC unroll 6
    for (int row = 0; row < count; row++) {
      int32_t both;
      memcpy(&both, rows + row * num_in + at, 4);
      __m512bh inputs = (__m512bh)_mm512_set1_epi32(both);
#pragma GCC unroll 4
      for (int part = 0; part < 4; part++) {
        sums[row][part] = _mm512_dpbf16_ps(sums[row][part], inputs, weights[part]);
      }
    }
  }
}

static inline __mmask16 columns(int32_t num_left) {
  return num_left >= 16 ? (__mmask16)0xffff : num_left <= 0 ? 0 : (__mmask16)((1u << num_left) - 1);
}

static inline void store_row(const pcg_matrix *matrix, const pcg_product *product, int32_t row,
                             int32_t first, __m512 sums[4]) {
  size_t place = (size_t)row * product->stride;
  if (matrix->bias != NULL) {
    for (int part = 0; part < 4; part++) {
      __mmask16 kept = columns(matrix->num_out - first - 16 * part);
      sums[part] =
          _mm512_add_ps(sums[part], _mm512_maskz_loadu_ps(kept, matrix->bias + first + 16 * part));
    }
  }
  if (product->kind == PCG_GATE_BF16) {
    uint16_t *out = (uint16_t *)product->out + place + first / 2;
    for (int part = 0; part < 2; part++) {
      __m512 gated = _mm512_mul_ps(pcg_silu(sums[part]), sums[part + 2]);
      _mm256_mask_storeu_epi16(out + 16 * part, columns((matrix->num_out - first) / 2 - 16 * part),
                               pcg_narrow(gated));
    }
    return;
  }
  for (int part = 0; part < 4; part++) {
    __mmask16 kept = columns(matrix->num_out - first - 16 * part);
    size_t at = place + first + 16 * part;
    if (product->kind == PCG_STORE_BF16) {
      _mm256_mask_storeu_epi16((uint16_t *)product->out + at, kept, pcg_narrow(sums[part]));
    } else {
      float *out = (float *)product->out + at;
      __m512 value = product->kind == PCG_STORE_F32
                         ? sums[part]
                         : _mm512_add_ps(_mm512_maskz_loadu_ps(kept, out), sums[part]);
      _mm512_mask_storeu_ps(out, kept, value);
    }
  }
}

#define TILE_OF(count)                                                                             \
  static void tile_##count(const pcg_matrix *matrix, const pcg_product *product, int32_t row,      \
                           int32_t panel) {                                                        \
    __m512 sums[TILE][4];                                                                          \
    size_t num_in = (size_t)matrix->num_in;                                                        \
    sum_tile(count, product->rows + row * num_in, num_in,                                          \
             matrix->panels + panel * num_in * PCG_PANEL, sums);                                   \
    for (int index = 0; index < count; index++) {                                                  \
      store_row(matrix, product, row + index, panel * PCG_PANEL, sums[index]);                     \
    }                                                                                              \
  }

TILE_OF(1)
TILE_OF(2)
TILE_OF(3)
TILE_OF(4)
TILE_OF(5)
TILE_OF(6)

typedef void (*tile_function)(const pcg_matrix *, const pcg_product *, int32_t, int32_t);
static const tile_function tiles[TILE + 1] = {NULL, tile_1, tile_2, tile_3, tile_4, tile_5, tile_6};

void pcg_multiply(const pcg_matrix *matrix, const pcg_product *product, pcg_team *team) {
  int32_t num_panels = (matrix->num_out + PCG_PANEL - 1) / PCG_PANEL;
  int32_t num_blocks = (product->num_rows + BLOCK - 1) / BLOCK;
  for (int32_t item; (item = pcg_next(team)) < num_panels * num_blocks;) {
    int32_t row = item % num_blocks * BLOCK;
    int32_t end = row + BLOCK < product->num_rows ? row + BLOCK : product->num_rows;
    for (; row < end; row += TILE) {
      tiles[end - row < TILE ? end - row : TILE](matrix, product, row, item / num_blocks);
    }
  }
}

typedef struct {
  const pcg_matrix *matrix;
  const pcg_product *product;
} both;

static void multiply(void *context, int thread, pcg_team *team) {
  (void)thread;
  both *given = context;
  pcg_multiply(given->matrix, given->product, team);
}

void pcg_matmul(pcg_team *team, const pcg_matrix *matrix, const pcg_product *product) {
  both given = {matrix, product};
  pcg_team_run(team, multiply, &given);
}
