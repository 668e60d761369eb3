/* One forward pass of a Llama-shaped decoder, from token ids to logits. Knows no scheduling. */
#ifndef PCG_STEP_H
#define PCG_STEP_H

#include "attention.h"
#include "matmul.h"
#include "plan.h"

/* One layer: matrices as `engine/model/native/weights.py` makes them, norms fp32, its planes of the
   pool. `qk_norm [num_heads + num_kv_heads][head_dim]` fp32 or NULL; `window` 0 for none. */
typedef struct {
  pcg_matrix qkv, out, gate_up, down;
  const float *attention_norm, *mlp_norm, *qk_norm;
  uint16_t *key, *value;
  int32_t window;
} pcg_layer;

/* `embedding [vocabulary][hidden]` bf16, `turns [num_positions][head_dim]` fp32: cos and sin of
   each pair by turns. */
typedef struct {
  const pcg_layer *layers;
  const uint16_t *embedding;
  const float *norm, *turns;
  pcg_matrix head;
  pcg_heads heads;
  int32_t num_layers, hidden;
  float eps;
} pcg_model;

/* Rows in the order of `spans`, whose `row` says where each begins. Of span i the last
   `num_sampled[i]` rows get logits
   `[sum of num_sampled][vocabulary]` fp32, in order. */
typedef struct {
  const int32_t *token_ids, *num_sampled;
  const pcg_span *spans;
  float *logits;
  int32_t num_spans, num_rows;
} pcg_step;

/* Write the rows' KV and the logits. 0, or -1 without memory: then nothing was written. */
PCG_API int32_t pcg_forward(pcg_team *team, const pcg_model *model, const pcg_step *step);

#endif
