/* Makes the plan by which a step attends. Knows no keys and no values. */
#ifndef PCG_PLAN_H
#define PCG_PLAN_H

#include "attention_plan.h"

/* While the team is idle, and for that team. NULL without memory, of which attending needs none. */
PCG_API pcg_plan *pcg_plan_new(const pcg_span *spans, int32_t num_spans, const pcg_heads *heads,
                               int32_t window, pcg_team *team);
PCG_API void pcg_plan_free(pcg_plan *plan);

#endif
