/* Memory and threads for runs of a network; each run borrows a set of its own. */
#ifndef LRNETS_POOL_H
#define LRNETS_POOL_H

#include "internal.h"

struct pool *pool_create(void);
void pool_destroy(struct pool *pool);

/* Run the steps on so many portions of so many images: one by all threads together, several by a thread each, with an arena
 * of its own. 0, or 1 if memory or threads were refused. */
int pool_run(lrn_network *network, const float *x, int64_t images, int64_t portions, float *y, int threads);

#endif
