/* crc32c.h: CRC-32C (Castagnoli, reflected polynomial 0x82f63b78, RFC 3720 appendix B.4). Internal to proto/. */
#ifndef KVF_PROTO_CRC32C_H
#define KVF_PROTO_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(const void *data, size_t len);

#endif
