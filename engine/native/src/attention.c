/* Attends by a plan: each thread takes items, packs the keys and values they see, and goes over
   them in tiles of rows. */
#include "attention.h"

#include <math.h>
#include <string.h>

#include "attention_kernels.h"
#include "attention_memory.h"

enum { AHEAD = 4 }; /* blocks that are on their way from memory while one is packed */

/* What a thread works on. */
typedef struct {
  const pcg_plan *plan;
  const pcg_attention *layer;
  const pcg_block *block;
  const pcg_item *item;
  float *shared; /* the partial sums of all split blocks */
  float scale;   /* from products of queries and keys to exponents of 2 */
  pcg_memory own;
} work;

/* The first slot of a block of keys of a sequence, or -1 where it has no page. */
static int64_t slot_of(const work *at, const pcg_span *piece, int32_t segment, int32_t block) {
  int64_t token = (int64_t)segment * PCG_SEGMENT + block * PCG_KEYS,
          page_size = at->plan->heads.page_size;
  int64_t page = token / page_size;
  return page < piece->num_pages ? piece->pages[page] * page_size + token % page_size : -1;
}

static pcg_seen blocks_of(pcg_seen keys) {
  pcg_seen blocks = {keys.first / PCG_KEYS, (keys.end + PCG_KEYS - 1) / PCG_KEYS};
  return blocks;
}

static pcg_seen together(pcg_seen a, pcg_seen b) {
  if (a.first >= a.end) {
    return b;
  }
  if (b.first >= b.end) {
    return a;
  }
  return (pcg_seen){pcg_least(a.first, b.first), pcg_greatest(a.end, b.end)};
}

/* Have the second cache fetch a block of keys or values: it takes more requests at a time than the
   first does. */
static inline __attribute__((always_inline)) void fetch(const uint16_t *rows, size_t stride,
                                                        size_t dim) {
  for (size_t key = 0; key < PCG_KEYS; key++) {
    for (size_t place = key * stride; place < key * stride + dim; place += 32) {
      _mm_prefetch((const char *)(rows + place), _MM_HINT_T1);
    }
  }
}

/* Pack what is not packed already. */
static void pack(work *at, const pcg_span *piece, int32_t segment, pcg_seen blocks) {
  const pcg_heads *heads = &at->plan->heads;
  size_t dim = (size_t)heads->head_dim, stride = dim * (size_t)heads->num_kv_heads;
  const uint16_t *key = at->layer->key + (size_t)at->item->kv_head * dim,
                 *value = at->layer->value + (size_t)at->item->kv_head * dim;
  for (int32_t block = blocks.first, fetched = block; block < blocks.end; block++) {
    size_t from = (size_t)slot_of(at, piece, segment, block), to = (size_t)block * dim * PCG_KEYS;
    if (at->own.slots[block] == (int64_t)from) {
      continue;
    }
    for (fetched = pcg_greatest(fetched, block + 1); fetched < pcg_least(blocks.end, block + AHEAD);
         fetched++) {
      size_t later = (size_t)slot_of(at, piece, segment, fetched) * stride;
      fetch(key + later, stride, dim);
      fetch(value + later, stride, dim);
    }
    pcg_pack_keys(key + from * stride, stride, heads->head_dim, at->own.keys + to);
    pcg_pack_values(value + from * stride, stride, heads->head_dim, at->own.values + to);
    at->own.slots[block] = (int64_t)from;
  }
}

static float *most_of(const work *at, float *partial) { return partial + at->plan->heads.head_dim; }
static float *total_of(const work *at, float *partial) {
  return partial + at->plan->heads.head_dim + 1;
}

/* The partial sums of a split block, a KV head, and a segment: one after the other for each query
   row. */
static float *split_partials(const work *at, int32_t segment) {
  size_t num_rows = (size_t)at->block->num_rows * (size_t)at->plan->num_group;
  size_t num_segments = (size_t)(at->block->end_segment - at->block->first_segment);
  size_t index =
      (size_t)at->item->kv_head * num_segments + (size_t)(segment - at->block->first_segment);
  return at->shared + at->block->partials + index * num_rows * pcg_partial_floats(&at->plan->heads);
}

/* `num_rows` query rows from `row` on, against the packed segment. */
static void attend_tile(work *at, int32_t segment, int32_t row, int32_t num_rows) {
  int32_t dim = at->plan->heads.head_dim;
  size_t floats = pcg_partial_floats(&at->plan->heads);
  pcg_seen seen[PCG_TILE], all = {0, 0};
  for (int32_t index = 0; index < num_rows; index++) {
    seen[index] = pcg_seen_of(at->own.positions[row + index], segment, at->plan->window);
    all = together(all, seen[index]);
  }
  if (all.first >= all.end) {
    return;
  }
  pcg_seen blocks = blocks_of(all);
  int is_split = at->block->num_parts > 1;
  float *partials =
      (is_split ? split_partials(at, segment) : at->own.partials) + (size_t)row * floats;
  float *sums = is_split ? partials : at->own.new_sums;
  size_t stride = is_split ? floats : (size_t)dim;
  float most[PCG_TILE], total[PCG_TILE];
  pcg_score(at->own.query + (size_t)row * (size_t)dim, num_rows, dim, at->own.keys, blocks,
            at->own.scores);
  for (int32_t index = 0; index < num_rows; index++) {
    const float *scores = at->own.scores + (size_t)index * PCG_SCORES;
    most[index] = seen[index].first < seen[index].end
                      ? pcg_greatest_score(scores, seen[index]) * at->scale
                      : PCG_NOTHING;
  }
  for (int32_t index = 0; index < num_rows; index++) {
    const float *scores = at->own.scores + (size_t)index * PCG_SCORES;
    uint16_t *weights = at->own.weights + (size_t)index * PCG_WEIGHTS;
    total[index] = pcg_weigh(scores, at->scale, most[index], seen[index], blocks, weights);
  }
  pcg_sum_values(at->own.weights, num_rows, dim, at->own.values, blocks, sums, stride);
  for (int32_t index = 0; index < num_rows; index++) {
    float *partial = partials + (size_t)index * floats;
    if (is_split) {
      *most_of(at, partial) = most[index];
      *total_of(at, partial) = total[index];
    } else {
      pcg_merge(partial, most_of(at, partial), total_of(at, partial), sums + (size_t)index * stride,
                most[index], total[index], dim);
    }
  }
}

/* Whether two pieces see the same slots in some blocks. */
static int is_same(const work *at, const pcg_span *a, const pcg_span *b, int32_t segment,
                   pcg_seen blocks) {
  for (int32_t block = blocks.first; block < blocks.end; block++) {
    int64_t slot = slot_of(at, a, segment, block);
    if (slot < 0 || slot != slot_of(at, b, segment, block)) {
      return 0;
    }
  }
  return 1;
}

/* All rows of the block: pieces that see the same slots in common tiles, the others one by one. */
static void attend_segment(work *at, int32_t segment) {
  const pcg_span *pieces = at->plan->pieces + at->block->first_piece;
  int32_t num_group = at->plan->num_group, row = 0;
  for (int32_t index = 0, next; index < at->block->num_pieces; index = next) {
    pcg_seen blocks = blocks_of(pcg_seen_by(&pieces[index], segment, at->plan->window));
    int32_t num_rows = pieces[index].num_rows;
    for (next = index + 1; next < at->block->num_pieces; next++) {
      pcg_seen more =
          together(blocks, blocks_of(pcg_seen_by(&pieces[next], segment, at->plan->window)));
      if (!is_same(at, &pieces[index], &pieces[next], segment, more)) {
        break;
      }
      blocks = more;
      num_rows += pieces[next].num_rows;
    }
    pack(at, &pieces[index], segment, blocks);
    int32_t end = row + num_rows * num_group;
    for (; row < end; row += PCG_TILE) {
      attend_tile(at, segment, row, pcg_least(PCG_TILE, end - row));
    }
    row = end;
  }
}

/* Where a query row of the item lies among the step's: `rows + query_place`, for queries and for
   what they attend to. */
static size_t place_of(const work *at, const pcg_span *piece, int32_t row, int32_t head) {
  const pcg_heads *heads = &at->plan->heads;
  size_t query_head = (size_t)at->item->kv_head * (size_t)at->plan->num_group + (size_t)head;
  return ((size_t)(piece->row + row) * (size_t)heads->num_heads + query_head) *
         (size_t)heads->head_dim;
}

static void take_queries(work *at) {
  size_t dim = (size_t)at->plan->heads.head_dim;
  int32_t to = 0;
  for (int32_t index = 0; index < at->block->num_pieces; index++) {
    const pcg_span *piece = at->plan->pieces + at->block->first_piece + index;
    for (int32_t row = 0; row < piece->num_rows; row++) {
      const uint16_t *from = at->layer->query + place_of(at, piece, row, 0);
      memcpy(at->own.query + (size_t)to * dim, from,
             (size_t)at->plan->num_group * dim * sizeof(uint16_t));
      for (int32_t head = 0; head < at->plan->num_group; head++) {
        at->own.positions[to++] = piece->start + row;
      }
    }
  }
}

/* `num_rows` rows that have seen nothing. */
static void clear(const work *at, float *partials, int32_t num_rows) {
  for (int32_t row = 0; row < num_rows; row++) {
    float *partial = partials + (size_t)row * pcg_partial_floats(&at->plan->heads);
    memset(partial, 0, sizeof(float) * (size_t)at->plan->heads.head_dim);
    *most_of(at, partial) = PCG_NOTHING;
    *total_of(at, partial) = 0.0f;
  }
}

/* The parts of a split block's segments together, in order, into the thread's own memory. */
static void merge_parts(work *at, int32_t num_rows) {
  size_t floats = pcg_partial_floats(&at->plan->heads);
  clear(at, at->own.partials, num_rows);
  for (int32_t segment = at->block->first_segment; segment < at->block->end_segment; segment++) {
    float *parts = split_partials(at, segment);
    for (int32_t row = 0; row < num_rows; row++) {
      float *partial = at->own.partials + (size_t)row * floats,
            *part = parts + (size_t)row * floats;
      float *most = most_of(at, partial), *total = total_of(at, partial);
      pcg_merge(partial, most, total, part, *most_of(at, part), *total_of(at, part),
                at->plan->heads.head_dim);
    }
  }
}

static void write_rows(const work *at) {
  const float *partial = at->own.partials;
  for (int32_t index = 0; index < at->block->num_pieces; index++) {
    const pcg_span *piece = at->plan->pieces + at->block->first_piece + index;
    for (int32_t row = 0; row < piece->num_rows; row++) {
      for (int32_t head = 0; head < at->plan->num_group; head++) {
        uint16_t *out = at->layer->out + place_of(at, piece, row, head);
        pcg_finish(partial, partial[at->plan->heads.head_dim + 1], at->plan->heads.head_dim, out);
        partial += pcg_partial_floats(&at->plan->heads);
      }
    }
  }
}

static void run_item(work *at) {
  int32_t num_rows = at->block->num_rows * at->plan->num_group;
  int is_split = at->block->num_parts > 1;
  memset(at->own.slots, -1, sizeof at->own.slots);
  take_queries(at);
  if (!is_split) {
    clear(at, at->own.partials, num_rows);
  }
  for (int32_t segment = at->item->first_segment; segment < at->item->end_segment; segment++) {
    if (is_split) {
      clear(at, split_partials(at, segment), num_rows);
    }
    attend_segment(at, segment);
  }
  if (is_split) {
    atomic_int *unfinished =
        &at->plan->unfinished[at->item->block * at->plan->heads.num_kv_heads + at->item->kv_head];
    if (atomic_fetch_sub_explicit(unfinished, 1, memory_order_acq_rel) > 1) {
      return;
    }
    atomic_store_explicit(unfinished, at->block->num_parts, memory_order_relaxed);
    merge_parts(at, num_rows);
  }
  write_rows(at);
}

void pcg_attend(const pcg_plan *plan, const pcg_attention *layer, pcg_team *team, int thread) {
  work at = {
      .plan = plan, .layer = layer, .scale = 1.44269504f / sqrtf((float)plan->heads.head_dim)};
  pcg_lay_out(plan, pcg_scratch(team, thread, pcg_lay_out(plan, NULL, NULL)), &at.own);
  at.shared = plan->num_partials == 0
                  ? NULL
                  : pcg_shared(team, PCG_ATTENTION, plan->num_partials * sizeof(float));
  for (int index = pcg_next(team); index < plan->num_items; index = pcg_next(team)) {
    at.item = &plan->items[index];
    at.block = &plan->blocks[at.item->block];
    run_item(&at);
  }
}

typedef struct {
  const pcg_plan *plan;
  const pcg_attention *layer;
} task;

static void attend(void *context, int thread, pcg_team *team) {
  const task *of = context;
  pcg_attend(of->plan, of->layer, team, thread);
}

void pcg_attend_all(const pcg_plan *plan, const pcg_attention *layer, pcg_team *team) {
  pcg_team_run(team, attend, &(task){plan, layer});
}
