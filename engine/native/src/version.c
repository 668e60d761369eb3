/* What the loader asks before anything else. */
#include "pcg.h"

PCG_API int32_t pcg_abi(void);
PCG_API int32_t pcg_bits(void);

int32_t pcg_abi(void) { return PCG_ABI; }
int32_t pcg_bits(void) { return PCG_BITS; }
