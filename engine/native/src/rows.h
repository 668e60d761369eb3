/* What happens to one row between products: norms, rotations, and its place in the pool. Every row
   by itself. */
#ifndef PCG_ROWS_H
#define PCG_ROWS_H

#include "pcg.h"

/* `out` bf16 = `row` fp32 * weight / its root mean square. `size` is a multiple of 16. */
void pcg_norm(const float *row, const float *weight, int32_t size, float eps, uint16_t *out);

/* A row of bf16 as fp32. `size` is a multiple of 16. */
void pcg_widen_row(const uint16_t *row, int32_t size, float *out);

/* Normalize a head where `weight` is not NULL, then turn its pairs, which lie side by side: `turn`
   are cos and sin of each. `out` bf16 has zeros for what is not finite. `size` is a multiple of 16.
 */
void pcg_turn_head(const uint16_t *head, const float *weight, const float *turn, int32_t size,
                   float eps, uint16_t *out);

/* Copy bf16 with zeros for what is not finite. `size` is a multiple of 16. */
void pcg_copy_finite(const uint16_t *values, int32_t size, uint16_t *out);

#endif
