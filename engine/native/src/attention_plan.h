/* A step's rows as items that threads take one by one: data alone. Knows no memory of keys and
   values. */
#ifndef PCG_ATTENTION_PLAN_H
#define PCG_ATTENTION_PLAN_H

#include <stdatomic.h>

#include "attention_kernels.h"

/* Rows of one sequence at positions `start` to `start + num_rows`, and its block table in pages of
   `page_size` slots. `row` is its first row's index in the step. */
typedef struct {
  int32_t row, num_rows, start, num_pages;
  const int32_t *pages;
} pcg_span;

typedef struct {
  int32_t num_heads, num_kv_heads, head_dim, page_size;
} pcg_heads;

/* Rows that are taken together, one after the other in `pieces`: some of one sequence, or a few
   each of several that begin alike. They see segments `[first_segment, end_segment)`, which
   `num_parts` items of each KV head share among them. Of several, what they find is kept from
   `partials` on, in floats of the team's shared memory: `[KV heads][segments][query rows]`. */
typedef struct {
  int32_t first_piece, num_pieces, num_rows;
  int32_t first_segment, end_segment;
  int32_t num_parts;
  size_t partials;
} pcg_block;

/* A block's segments `[first_segment, end_segment)` for one KV head; `cost` is in scores to be
   computed. */
typedef struct {
  int32_t block, kv_head, first_segment, end_segment;
  int64_t cost;
} pcg_item;

/* How spans attend, the same in every layer of one window (0: none). Keeps no pointer into `spans`,
   but their `pages`. */
typedef struct {
  pcg_heads heads;
  int32_t window, num_group;
  int32_t num_pieces, num_blocks, num_items;
  int32_t block_rows; /* query rows, of which a position has `num_group`, of the largest block */
  size_t num_partials;
  pcg_span *pieces;
  pcg_block *blocks;
  pcg_item *items;
  atomic_int *unfinished; /* [blocks][KV heads]: parts that no thread has finished yet */
} pcg_plan;

/* Floats that a query row's part of a segment takes: its sums, their greatest score, and the total.
 */
static inline size_t pcg_partial_floats(const pcg_heads *heads) {
  return (size_t)heads->head_dim + 16;
}

/* The keys of a segment that the row at `position` sees, counted from the segment's first. */
static inline pcg_seen pcg_seen_of(int32_t position, int32_t segment, int32_t window) {
  int64_t base = (int64_t)segment * PCG_SEGMENT, end = position + 1 - base;
  int64_t first = window > 0 ? end - window : 0;
  pcg_seen seen = {first < 0 ? 0 : (int32_t)first, end > PCG_SEGMENT ? PCG_SEGMENT : (int32_t)end};
  return seen;
}

/* What the positions `[start, start + num_rows)` see of a segment, all together. */
static inline pcg_seen pcg_seen_by(const pcg_span *piece, int32_t segment, int32_t window) {
  pcg_seen seen = pcg_seen_of(piece->start + piece->num_rows - 1, segment, window);
  seen.first = pcg_seen_of(piece->start, segment, window).first;
  return seen;
}

#endif
