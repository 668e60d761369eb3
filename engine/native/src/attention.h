/* Attention of rows over the pages of their sequences. Knows no model, and writes no KV. */
#ifndef PCG_ATTENTION_H
#define PCG_ATTENTION_H

#include "attention_plan.h"

/* One layer. `query [num_rows][num_heads][head_dim]` bf16 rotated, not scaled; `key`, `value
   [num_slots][num_kv_heads][head_dim]` bf16; `out [num_rows][num_heads * head_dim]` bf16. */
typedef struct {
  const uint16_t *query, *key, *value;
  uint16_t *out;
} pcg_attention;

/* Every thread of the team calls it, between two barriers. Values in the slots of the pages are
   finite, seen or not. */
void pcg_attend(const pcg_plan *plan, const pcg_attention *layer, pcg_team *team, int thread);

/* The same by the whole team. */
PCG_API void pcg_attend_all(const pcg_plan *plan, const pcg_attention *layer, pcg_team *team);

#endif
