/* Products with weights packed once: a row's values depend on that row alone, in bits. Knows no
   model. */
#ifndef PCG_MATMUL_H
#define PCG_MATMUL_H

#include "pcg.h"

/* Outputs that are computed side by side. */
#define PCG_PANEL 64

/* A weight `[num_out][num_in]` bf16 as panels `[ceil(num_out / 64)][num_in / 2][64][2]`, zeros
   where there is no output. `bias [num_out]` fp32 in the order of the panels, or NULL. `num_in` is
   even. */
typedef struct {
  const uint16_t *panels;
  const float *bias;
  int32_t num_in, num_out;
} pcg_matrix;

/* What becomes of a product: stored as bf16 or fp32, added to fp32 that is there, or, of panels
   that hold 32 outputs of the gate and 32 of what it gates, silu(gate) * up as bf16 (half as many
   columns as outputs). */
enum { PCG_STORE_BF16 = 0, PCG_STORE_F32 = 1, PCG_ADD_F32 = 2, PCG_GATE_BF16 = 3 };

typedef struct {
  const uint16_t *rows; /* [num_rows][num_in] bf16 */
  void *out;            /* [num_rows][stride] */
  int32_t num_rows, stride, kind;
} pcg_product;

/* Every thread of the team calls it, between two barriers. */
void pcg_multiply(const pcg_matrix *matrix, const pcg_product *product, pcg_team *team);

/* The panels of `weight [num_out][num_in]`; `panels` has room for whole ones. */
PCG_API void pcg_pack(const uint16_t *weight, int32_t num_out, int32_t num_in, uint16_t *panels);

/* One product by the whole team. */
PCG_API void pcg_matmul(pcg_team *team, const pcg_matrix *matrix, const pcg_product *product);

#endif
