/* Lays out the memory of a thread that attends, and reserves it for a whole team before the first
   item. */
#include "attention_memory.h"

static size_t place(size_t *nbytes, size_t size) {
  size_t at = *nbytes;
  *nbytes += (size + 63) / 64 * 64;
  return at;
}

size_t pcg_lay_out(const pcg_plan *plan, char *base, pcg_memory *own) {
  size_t dim = (size_t)plan->heads.head_dim, num_rows = (size_t)plan->block_rows, nbytes = 0;
  size_t packed = dim * PCG_SEGMENT * sizeof(uint16_t);
  size_t keys = place(&nbytes, packed), values = place(&nbytes, packed);
  size_t query = place(&nbytes, num_rows * dim * sizeof(uint16_t));
  size_t scores = place(&nbytes, PCG_TILE * PCG_SCORES * sizeof(float));
  size_t weights = place(&nbytes, PCG_TILE * PCG_WEIGHTS * sizeof(uint16_t));
  size_t new_sums = place(&nbytes, PCG_TILE * dim * sizeof(float));
  size_t partials = place(&nbytes, num_rows * pcg_partial_floats(&plan->heads) * sizeof(float));
  size_t positions = place(&nbytes, num_rows * sizeof(int32_t));
  if (base != NULL) {
    own->keys = (uint16_t *)(base + keys);
    own->values = (uint16_t *)(base + values);
    own->query = (uint16_t *)(base + query);
    own->scores = (float *)(base + scores);
    own->weights = (uint16_t *)(base + weights);
    own->new_sums = (float *)(base + new_sums);
    own->partials = (float *)(base + partials);
    own->positions = (int32_t *)(base + positions);
  }
  return nbytes;
}

int pcg_reserve(const pcg_plan *plan, pcg_team *team) {
  size_t nbytes = pcg_lay_out(plan, NULL, NULL);
  for (int thread = 0; thread < pcg_team_size(team); thread++) {
    if (pcg_scratch(team, thread, nbytes) == NULL) {
      return 0;
    }
  }
  return plan->num_partials == 0 ||
         pcg_shared(team, PCG_ATTENTION, plan->num_partials * sizeof(float)) != NULL;
}
