/* Attention of rows over the pages of their sequences, one row and head after the other. */
#include "attention.h"

#include "vector.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct pcg_plan {
  pcg_heads heads;
  int32_t window, num_spans, num_rows;
  pcg_span spans[];
};

pcg_plan *pcg_plan_new(const pcg_span *spans, int32_t num_spans, const pcg_heads *heads, int32_t window, int32_t num_threads) {
  (void)num_threads;
  pcg_plan *plan = malloc(sizeof(pcg_plan) + sizeof(pcg_span) * (size_t)num_spans);
  if (plan == NULL) {
    return NULL;
  }
  plan->heads = *heads;
  plan->window = window;
  plan->num_spans = num_spans;
  memcpy(plan->spans, spans, sizeof(pcg_span) * (size_t)num_spans);
  return plan;
}

void pcg_plan_free(pcg_plan *plan) { free(plan); }

static float widened(uint16_t value) {
  uint32_t bits = (uint32_t)value << 16;
  float result;
  memcpy(&result, &bits, 4);
  return result;
}

static void attend_row(const pcg_plan *plan, const pcg_attention *layer, const pcg_span *span, int32_t row, int32_t head, float *sums) {
  const pcg_heads *heads = &plan->heads;
  int32_t dim = heads->head_dim, kv_head = head / (heads->num_heads / heads->num_kv_heads), position = span->start + row;
  size_t place = ((size_t)(span->row + row) * heads->num_heads + head) * dim;
  int32_t first = plan->window > 0 && position >= plan->window ? position - plan->window + 1 : 0;
  float scale = 1.0f / sqrtf((float)dim), most = -INFINITY, total = 0.0f;
  memset(sums, 0, sizeof(float) * (size_t)dim);
  for (int32_t token = first; token <= position; token++) {
    size_t slot = (size_t)span->pages[token / heads->page_size] * heads->page_size + token % heads->page_size;
    size_t at = (slot * heads->num_kv_heads + kv_head) * dim;
    float score = 0.0f;
    for (int32_t index = 0; index < dim; index++) {
      score += widened(layer->query[place + index]) * widened(layer->key[at + index]);
    }
    score *= scale;
    float kept = 1.0f;
    if (score > most) {
      kept = _mm512_cvtss_f32(pcg_exp(_mm512_set1_ps(most - score)));
      most = score;
    }
    float weight = _mm512_cvtss_f32(pcg_exp(_mm512_set1_ps(score - most)));
    total = total * kept + weight;
    for (int32_t index = 0; index < dim; index++) {
      sums[index] = sums[index] * kept + weight * widened(layer->value[at + index]);
    }
  }
  for (int32_t index = 0; index < dim; index++) {
    _mm_storeu_si16(layer->out + place + index, _mm256_castsi256_si128(pcg_narrow(_mm512_set1_ps(sums[index] / total))));
  }
}

void pcg_attend(const pcg_plan *plan, const pcg_attention *layer, pcg_team *team, int thread) {
  float *sums = pcg_scratch(team, thread, sizeof(float) * (size_t)plan->heads.head_dim);
  int32_t item = pcg_next(team), at = 0;
  for (int32_t index = 0; index < plan->num_spans; index++) {
    const pcg_span *span = &plan->spans[index];
    int32_t num_items = span->num_rows * plan->heads.num_heads;
    for (; item < at + num_items; item = pcg_next(team)) {
      attend_row(plan, layer, span, (item - at) / plan->heads.num_heads, (item - at) % plan->heads.num_heads, sums);
    }
    at += num_items;
  }
}
