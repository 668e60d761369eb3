/* The forward pass: phases that the team does together, a barrier after each. */
#include "step.h"

#include "rows.h"

#include <string.h>

enum { MAX_WINDOWS = 8 /* different ones in a model */ };

/* How one row fits into the step: its position, its slot in the pool, its place among the sampled
   rows or -1. */
typedef struct {
  int32_t token_id, position, slot, sampled;
} place;

/* What the phases read and write. `rows` is the residual stream in fp32; `sampled` its sampled rows
   in the last layer. */
typedef struct {
  const pcg_model *model;
  const pcg_step *step;
  place *places;
  float *rows, *sampled;
  uint16_t *normed, *projected, *query, *attended, *gated;
  pcg_span *sampled_spans;
  int32_t num_sampled, num_sampled_spans, num_windows;
  int32_t windows[MAX_WINDOWS];
  pcg_plan *plans[MAX_WINDOWS], *sampled_plans[MAX_WINDOWS];
} pass;

static int32_t query_size(const pcg_model *model) {
  return model->heads.num_heads * model->heads.head_dim;
}

/* Give every array its part of the memory. Called once without any to learn the size. */
static size_t lay_out(pass *self, char *memory) {
  const pcg_model *model = self->model;
  const pcg_layer *layer = &model->layers[0];
  size_t num_rows = (size_t)self->step->num_rows, at = 0;
#define PART(name, count)                                                                          \
  do {                                                                                             \
    self->name = (void *)((uintptr_t)memory + at);                                                 \
    at += ((count) * sizeof(*self->name) + 127) / 64 * 64;                                         \
  } while (0)
  PART(places, num_rows);
  PART(rows, num_rows * model->hidden);
  PART(sampled, (size_t)self->num_sampled * model->hidden);
  PART(normed, num_rows * model->hidden);
  PART(projected, num_rows * layer->qkv.num_out);
  PART(query, num_rows * query_size(model));
  PART(attended, num_rows * query_size(model));
  PART(gated, num_rows * layer->down.num_in);
  PART(sampled_spans, (size_t)self->step->num_spans);
#undef PART
  return at;
}

static int provide(pass *self, pcg_team *team) {
  for (int32_t index = 0; index < self->step->num_spans; index++) {
    self->num_sampled += self->step->num_sampled[index];
  }
  char *memory = pcg_shared(team, PCG_STEP, lay_out(self, NULL));
  if (memory != NULL) {
    lay_out(self, memory);
  }
  return memory != NULL;
}

/* Where each row and each sampled span lies. */
static void find_places(pass *self) {
  const pcg_step *step = self->step;
  int32_t page_size = self->model->heads.page_size, sampled = 0;
  for (int32_t index = 0; index < step->num_spans; index++) {
    const pcg_span *span = &step->spans[index];
    int32_t first_sampled = span->num_rows - step->num_sampled[index];
    if (step->num_sampled[index] > 0) {
      pcg_span *own = &self->sampled_spans[self->num_sampled_spans++];
      *own = *span;
      own->row = sampled;
      own->num_rows = step->num_sampled[index];
      own->start = span->start + first_sampled;
    }
    for (int32_t row = 0; row < span->num_rows; row++) {
      int32_t position = span->start + row;
      place *own = &self->places[span->row + row];
      own->token_id = step->token_ids[span->row + row];
      own->position = position;
      own->slot = span->pages[position / page_size] * page_size + position % page_size;
      own->sampled = row < first_sampled ? -1 : sampled++;
    }
  }
}

static void drop_plans(pass *self) {
  for (int32_t index = 0; index < self->num_windows; index++) {
    pcg_plan_free(self->plans[index]);
    pcg_plan_free(self->sampled_plans[index]);
  }
}

static int32_t window_of(const pass *self, int32_t window) {
  int32_t index = 0;
  while (index < self->num_windows && self->windows[index] != window) {
    index++;
  }
  return index;
}

static int make_plans(pass *self, pcg_team *team) {
  const pcg_model *model = self->model;
  for (int32_t layer = 0; layer < model->num_layers; layer++) {
    int32_t window = model->layers[layer].window, index = window_of(self, window);
    if (index < self->num_windows) {
      continue;
    }
    if (index == MAX_WINDOWS) {
      return 0;
    }
    self->num_windows++;
    self->windows[index] = window;
    self->plans[index] =
        pcg_plan_new(self->step->spans, self->step->num_spans, &model->heads, window, team);
    self->sampled_plans[index] = NULL;
    if (self->plans[index] == NULL) {
      return 0;
    }
  }
  if (self->num_sampled == 0) {
    return 1;
  }
  int32_t last = window_of(self, model->layers[model->num_layers - 1].window);
  self->sampled_plans[last] = pcg_plan_new(self->sampled_spans, self->num_sampled_spans,
                                           &model->heads, self->windows[last], team);
  return self->sampled_plans[last] != NULL;
}

typedef struct {
  int32_t first, end;
} stretch;

/* The next rows to treat, some at a time: first and end, both at most `num_rows`. 0 where none are
   left. */
static int next_rows(pcg_team *team, int32_t num_rows, stretch *rows) {
  int32_t size = num_rows / (8 * pcg_team_size(team)) + 1, item = pcg_next(team);
  int32_t first = item < num_rows ? item * size : num_rows, end = first + size;
  *rows = (stretch){first < num_rows ? first : num_rows, end < num_rows ? end : num_rows};
  return rows->first < rows->end;
}

/* Widen the embeddings of the rows' tokens. */
static void embed(const pass *self, pcg_team *team) {
  int32_t hidden = self->model->hidden;
  for (stretch rows; next_rows(team, self->step->num_rows, &rows);) {
    for (int32_t row = rows.first; row < rows.end; row++) {
      const uint16_t *embedding =
          self->model->embedding + (size_t)self->places[row].token_id * hidden;
      pcg_widen_row(embedding, hidden, self->rows + (size_t)row * hidden);
    }
  }
  pcg_barrier(team);
}

static void norm(const pass *self, const float *values, const float *weight, int32_t num_rows,
                 pcg_team *team) {
  int32_t hidden = self->model->hidden;
  for (stretch rows; next_rows(team, num_rows, &rows);) {
    for (int32_t row = rows.first; row < rows.end; row++) {
      size_t at = (size_t)row * hidden;
      pcg_norm(values + at, weight, hidden, self->model->eps, self->normed + at);
    }
  }
  pcg_barrier(team);
}

static void multiply(const pcg_matrix *matrix, const pcg_product *product, pcg_team *team) {
  pcg_multiply(matrix, product, team);
  pcg_barrier(team);
}

/* Turn a row's heads, write its keys and values into the pool and its query where attention reads
   it. */
static void place_row(const pass *self, const pcg_layer *layer, int32_t row, uint16_t *query) {
  const pcg_model *model = self->model;
  const place *own = &self->places[row];
  int32_t dim = model->heads.head_dim, num_heads = model->heads.num_heads,
          num_kv_heads = model->heads.num_kv_heads;
  const uint16_t *projected = self->projected + (size_t)row * layer->qkv.num_out;
  const float *turn = model->turns + (size_t)own->position * dim;
  size_t slot = (size_t)own->slot * num_kv_heads * dim;
  for (int32_t head = 0; head < num_heads + num_kv_heads; head++) {
    if (head < num_heads && query == NULL) {
      continue;
    }
    uint16_t *out =
        head < num_heads ? query + head * dim : layer->key + slot + (head - num_heads) * dim;
    const float *weight = layer->qk_norm == NULL ? NULL : layer->qk_norm + head * dim;
    pcg_turn_head(projected + head * dim, weight, turn, dim, model->eps, out);
  }
  pcg_copy_finite(projected + (num_heads + num_kv_heads) * dim, num_kv_heads * dim,
                  layer->value + slot);
}

/* Place all rows. In the last layer only the sampled ones go on: their queries and residuals are
   copied side by side. */
static void place_rows(const pass *self, const pcg_layer *layer, int last, pcg_team *team) {
  int32_t hidden = self->model->hidden;
  for (stretch rows; next_rows(team, self->step->num_rows, &rows);) {
    for (int32_t row = rows.first; row < rows.end; row++) {
      int32_t at = last ? self->places[row].sampled : row;
      place_row(self, layer, row,
                at < 0 ? NULL : self->query + (size_t)at * query_size(self->model));
      if (last && at >= 0) {
        memcpy(self->sampled + (size_t)at * hidden, self->rows + (size_t)row * hidden,
               sizeof(float) * (size_t)hidden);
      }
    }
  }
  pcg_barrier(team);
}

/* The layer's own attention and everything after it, for `num_rows` rows. */
static void finish(const pass *self, const pcg_layer *layer, float *rows, int32_t num_rows,
                   const pcg_plan *plan, pcg_team *team, int thread) {
  int32_t hidden = self->model->hidden, gated = layer->down.num_in;
  pcg_attend(plan, &(pcg_attention){self->query, layer->key, layer->value, self->attended}, team,
             thread);
  pcg_barrier(team);
  multiply(&layer->out, &(pcg_product){self->attended, rows, num_rows, hidden, PCG_ADD_F32}, team);
  norm(self, rows, layer->mlp_norm, num_rows, team);
  multiply(&layer->gate_up,
           &(pcg_product){self->normed, self->gated, num_rows, gated, PCG_GATE_BF16}, team);
  multiply(&layer->down, &(pcg_product){self->gated, rows, num_rows, hidden, PCG_ADD_F32}, team);
}

static void forward(void *context, int thread, pcg_team *team) {
  const pass *self = context;
  const pcg_model *model = self->model;
  int32_t num_rows = self->step->num_rows;
  embed(self, team);
  for (int32_t index = 0; index < model->num_layers; index++) {
    const pcg_layer *layer = &model->layers[index];
    int last = index == model->num_layers - 1;
    norm(self, self->rows, layer->attention_norm, num_rows, team);
    multiply(
        &layer->qkv,
        &(pcg_product){self->normed, self->projected, num_rows, layer->qkv.num_out, PCG_STORE_BF16},
        team);
    place_rows(self, layer, last, team);
    int32_t window = window_of(self, layer->window);
    if (!last) {
      finish(self, layer, self->rows, num_rows, self->plans[window], team, thread);
    } else if (self->num_sampled > 0) {
      finish(self, layer, self->sampled, self->num_sampled, self->sampled_plans[window], team,
             thread);
    }
  }
  if (self->num_sampled > 0) {
    norm(self, self->sampled, model->norm, self->num_sampled, team);
    pcg_product logits = {self->normed, self->step->logits, self->num_sampled, model->head.num_out,
                          PCG_STORE_F32};
    multiply(&model->head, &logits, team);
  }
}

int32_t pcg_forward(pcg_team *team, const pcg_model *model, const pcg_step *step) {
  pass self = {.model = model, .step = step};
  if (!provide(&self, team)) {
    return -1;
  }
  find_places(&self);
  int ready = make_plans(&self, team);
  if (ready) {
    pcg_team_run(team, forward, &self);
  }
  drop_plans(&self);
  return ready ? 0 : -1;
}
