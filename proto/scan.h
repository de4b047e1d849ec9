/* scan.h: first look at a MessagePack body from the network, before the unpacker sees it. Internal to proto/.
 *
 * The unpacker allocates what a count in the input promises, so five bytes can ask for gigabytes. The scan walks the
 * tokens with a fixed stack and no allocation, and lets through only one object that fills the whole body, whose counts
 * are covered by bytes that are there.
 */
#ifndef KVF_PROTO_SCAN_H
#define KVF_PROTO_SCAN_H

#include <stddef.h>

#define SCAN_DEPTH_MAX 8
#define SCAN_NODES_MAX 262144

/* NULL: fine. Otherwise what is wrong (a constant text), with the offset of the token in *at. */
const char *scan_body(const void *body, size_t len, size_t *at);

#endif
