/* config.h: config.json and generation_config.json as checked numbers. Internal to engine/model. */
#ifndef KVF_CONFIG_H
#define KVF_CONFIG_H

#include "engine/model/model.h"

#define CONFIG_MAX_LAYERS 4096

/* Either spelling: rope_theta + rope_scaling (rope type key `rope_type` or `type`), or rope_parameters. Every number is
 * in the range that the arithmetic of the engine needs; whether it agrees with the weights is the loader's to check. */
KVF_MUSTCHECK int config_read(const char *folder, struct model_config *out, struct kvf_err *err);

#endif
