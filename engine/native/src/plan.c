/* Cuts rows into blocks, and blocks into items of about the same cost. No choice made here changes
   bits. */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

#include "attention_memory.h"

enum {
  QUERY_ROWS = 384, /* of a block at most: enough to make packing cheap, */
  QUERY_VALUES =
      24576,       /* and what they have in all: few enough that their sums stay in the cache */
  FEW_ROWS = 16,   /* rows of a sequence that may share a block with those of others */
  PACKED_ROWS = 2, /* query rows that cost as much as packing the keys they see */
  ITEMS = 12,      /* wanted of each thread, so that all end at about the same time */
  LEAST_COST = 512 * 2, /* of a part: below, sharing costs more than it gains */
};

/* Most floats of partial sums, 64 MiB: rows beyond are not split, and there are enough of them to
   keep threads busy. */
static const size_t MAX_PARTIALS = (size_t)16 << 20;

static int32_t block_rows(const pcg_heads *heads) {
  int32_t num_query = pcg_least(QUERY_ROWS, QUERY_VALUES / heads->head_dim);
  return pcg_greatest(1, num_query / (heads->num_heads / heads->num_kv_heads));
}

/* Sequences with few rows first, those that begin with the same pages side by side, the shorter of
   them before the longer: without that their order would be none, as two that go on differently may
   stand on either side of one that does not. */
static int by_pages(const void *left, const void *right) {
  const pcg_span *a = left, *b = right;
  if ((a->num_rows > FEW_ROWS) != (b->num_rows > FEW_ROWS)) {
    return a->num_rows > FEW_ROWS ? 1 : -1;
  }
  if (a->num_rows <= FEW_ROWS) {
    for (int32_t index = 0; index < pcg_least(a->num_pages, b->num_pages); index++) {
      if (a->pages[index] != b->pages[index]) {
        return a->pages[index] < b->pages[index] ? -1 : 1;
      }
    }
    if (a->num_pages != b->num_pages) {
      return a->num_pages < b->num_pages ? -1 : 1;
    }
  }
  return a->row < b->row ? -1 : a->row > b->row;
}

static void cut_pieces(pcg_plan *plan, const pcg_span *spans, int32_t num_spans) {
  int32_t most = block_rows(&plan->heads);
  for (int32_t index = 0; index < num_spans; index++) {
    for (int32_t row = 0; row < spans[index].num_rows; row += most) {
      pcg_span *piece = &plan->pieces[plan->num_pieces++];
      *piece = spans[index];
      piece->row += row;
      piece->start += row;
      piece->num_rows = pcg_least(most, spans[index].num_rows - row);
    }
  }
  qsort(plan->pieces, (size_t)plan->num_pieces, sizeof(pcg_span), by_pages);
}

static int begin_alike(const pcg_span *a, const pcg_span *b) {
  return a->num_rows <= FEW_ROWS && b->num_rows <= FEW_ROWS && a->pages[0] == b->pages[0];
}

static void make_blocks(pcg_plan *plan) {
  int32_t most = block_rows(&plan->heads);
  pcg_block *block = NULL;
  for (int32_t index = 0; index < plan->num_pieces; index++) {
    const pcg_span *piece = &plan->pieces[index];
    int32_t end = piece->start + piece->num_rows;
    int32_t first_segment =
        plan->window > 0 ? pcg_greatest(0, piece->start + 1 - plan->window) / PCG_SEGMENT : 0;
    int32_t end_segment = (end + PCG_SEGMENT - 1) / PCG_SEGMENT;
    if (block == NULL || block->num_rows + piece->num_rows > most ||
        !begin_alike(piece - 1, piece)) {
      block = &plan->blocks[plan->num_blocks++];
      *block = (pcg_block){.first_piece = index,
                           .first_segment = first_segment,
                           .end_segment = end_segment,
                           .num_parts = 1};
    }
    block->num_pieces++;
    block->num_rows += piece->num_rows;
    block->first_segment = pcg_least(block->first_segment, first_segment);
    block->end_segment = pcg_greatest(block->end_segment, end_segment);
    plan->block_rows = pcg_greatest(plan->block_rows, block->num_rows * plan->num_group);
  }
}

static int64_t segment_cost(const pcg_plan *plan, const pcg_block *block, int32_t segment) {
  int64_t cost = 0;
  for (int32_t index = 0; index < block->num_pieces; index++) {
    const pcg_span *piece = &plan->pieces[block->first_piece + index];
    pcg_seen seen = pcg_seen_by(piece, segment, plan->window);
    int64_t num_keys = pcg_greatest(0, seen.end - seen.first);
    cost += num_keys * (PACKED_ROWS + (int64_t)piece->num_rows * plan->num_group);
  }
  return cost;
}

static int64_t total_cost(const pcg_plan *plan) {
  int64_t cost = 0;
  for (int32_t index = 0; index < plan->num_blocks; index++) {
    const pcg_block *block = &plan->blocks[index];
    for (int32_t segment = block->first_segment; segment < block->end_segment; segment++) {
      cost += segment_cost(plan, block, segment);
    }
  }
  return cost * plan->heads.num_kv_heads;
}

/* The floats of a block's partial sums. */
static size_t partials_of(const pcg_plan *plan, const pcg_block *block) {
  size_t num_rows = (size_t)block->num_rows * (size_t)plan->num_group;
  size_t num_segments = (size_t)(block->end_segment - block->first_segment);
  return num_rows * num_segments * (size_t)plan->heads.num_kv_heads *
         pcg_partial_floats(&plan->heads);
}

/* Parts of a block that cost `wanted` or more, but the last. */
static void cut_block(pcg_plan *plan, int32_t index, int64_t wanted) {
  pcg_block *block = &plan->blocks[index];
  size_t num_partials = partials_of(plan, block);
  int can_split = plan->num_partials + num_partials <= MAX_PARTIALS;
  pcg_item item = {.block = index, .first_segment = block->first_segment};
  block->num_parts = 0;
  for (int32_t segment = block->first_segment; segment < block->end_segment; segment++) {
    item.cost += segment_cost(plan, block, segment);
    item.end_segment = segment + 1;
    if (item.end_segment == block->end_segment || (can_split && item.cost >= wanted)) {
      block->num_parts++;
      for (item.kv_head = 0; item.kv_head < plan->heads.num_kv_heads; item.kv_head++) {
        plan->items[plan->num_items++] = item;
      }
      item.first_segment = item.end_segment;
      item.cost = 0;
    }
  }
  if (block->num_parts > 1) {
    block->partials = plan->num_partials;
    plan->num_partials += num_partials;
  }
  for (int32_t kv_head = 0; kv_head < plan->heads.num_kv_heads; kv_head++) {
    atomic_init(&plan->unfinished[index * plan->heads.num_kv_heads + kv_head], block->num_parts);
  }
}

static int costly_first(const void *left, const void *right) {
  const pcg_item *a = left, *b = right;
  return (a->cost < b->cost) - (a->cost > b->cost);
}

static int make_items(pcg_plan *plan, int num_threads) {
  int64_t wanted = INT64_MAX;
  if (num_threads > 1) {
    wanted = total_cost(plan) / ((int64_t)num_threads * ITEMS) + 1;
    wanted = wanted < LEAST_COST ? LEAST_COST : wanted;
  }
  size_t num_kv = (size_t)plan->heads.num_kv_heads, num_blocks = (size_t)plan->num_blocks;
  plan->items =
      malloc(sizeof(pcg_item) * (num_kv * (num_blocks + 1) + (size_t)num_threads * ITEMS));
  plan->unfinished = malloc(sizeof(atomic_int) * (num_kv * num_blocks + 1));
  if (plan->items == NULL || plan->unfinished == NULL) {
    return 0;
  }
  for (int32_t index = 0; index < plan->num_blocks; index++) {
    cut_block(plan, index, wanted);
  }
  qsort(plan->items, (size_t)plan->num_items, sizeof(pcg_item), costly_first);
  return 1;
}

static int make_plan(pcg_plan *plan, const pcg_span *spans, int32_t num_spans, pcg_team *team) {
  size_t num_pieces = 1;
  for (int32_t index = 0; index < num_spans; index++) {
    num_pieces += (size_t)(spans[index].num_rows / block_rows(&plan->heads)) + 1;
  }
  plan->pieces = malloc(sizeof(pcg_span) * num_pieces);
  plan->blocks = malloc(sizeof(pcg_block) * num_pieces);
  if (plan->pieces == NULL || plan->blocks == NULL) {
    return 0;
  }
  cut_pieces(plan, spans, num_spans);
  make_blocks(plan);
  return make_items(plan, pcg_team_size(team)) && pcg_reserve(plan, team);
}

pcg_plan *pcg_plan_new(const pcg_span *spans, int32_t num_spans, const pcg_heads *heads,
                       int32_t window, pcg_team *team) {
  pcg_plan *plan = calloc(1, sizeof(pcg_plan));
  if (plan == NULL) {
    return NULL;
  }
  plan->heads = *heads;
  plan->num_group = heads->num_heads / heads->num_kv_heads;
  plan->window = window;
  if (!make_plan(plan, spans, num_spans, team)) {
    pcg_plan_free(plan);
    return NULL;
  }
  return plan;
}

void pcg_plan_free(pcg_plan *plan) {
  if (plan == NULL) {
    return;
  }
  free(plan->pieces);
  free(plan->blocks);
  free(plan->items);
  free(plan->unfinished);
  free(plan);
}
