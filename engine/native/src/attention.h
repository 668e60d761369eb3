/* Attention of rows over the pages of their sequences. Knows no model, and writes no KV. */
#ifndef PCG_ATTENTION_H
#define PCG_ATTENTION_H

#include "pcg.h"

/* Rows of one sequence at positions `start` to `start + num_rows`, and its block table in pages of `page_size` slots.
   `row` is its first row's index in the step. */
typedef struct {
  int32_t row, num_rows, start, num_pages;
  const int32_t *pages;
} pcg_span;

typedef struct {
  int32_t num_heads, num_kv_heads, head_dim, page_size;
} pcg_heads;

/* One layer. `query [num_rows][num_heads][head_dim]` bf16 rotated, not scaled; `key`, `value [num_slots][num_kv_heads][head_dim]`
   bf16; `out [num_rows][num_heads * head_dim]` bf16. */
typedef struct {
  const uint16_t *query, *key, *value;
  uint16_t *out;
} pcg_attention;

/* How spans attend, the same in every layer of one window (0: none). Keeps no pointer into `spans`, but their `pages`. */
typedef struct pcg_plan pcg_plan;

/* While the team is idle, and for that team. NULL without memory, of which attending needs none. */
PCG_API pcg_plan *pcg_plan_new(const pcg_span *spans, int32_t num_spans, const pcg_heads *heads, int32_t window, pcg_team *team);
PCG_API void pcg_plan_free(pcg_plan *plan);

/* Every thread of the team calls it, between two barriers. Values in the slots of the pages are finite, seen or not. */
void pcg_attend(const pcg_plan *plan, const pcg_attention *layer, pcg_team *team, int thread);

/* The same by the whole team. */
PCG_API void pcg_attend_all(const pcg_plan *plan, const pcg_attention *layer, pcg_team *team);

#endif
