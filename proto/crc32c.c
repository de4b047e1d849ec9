#include "proto/crc32c.h"

#include <pthread.h>
#include <string.h>

/* table[k][b]: the CRC of byte b followed by k zero bytes, so eight bytes are folded in a step. */
static uint32_t table[8][256];
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void table_make(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
        table[0][byte] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (int byte = 0; byte < 256; byte++)
            table[k][byte] = table[k - 1][byte] >> 8 ^ table[0][table[k - 1][byte] & 0xff];
}

uint32_t crc32c(const void *data, size_t len)
{
    pthread_once(&table_once, table_make);
    const unsigned char *byte = data;
    uint32_t crc = 0xffffffffu;
    for (; len >= 8; byte += 8, len -= 8) {
        uint32_t low =
            crc ^ ((uint32_t)byte[0] | (uint32_t)byte[1] << 8 | (uint32_t)byte[2] << 16 | (uint32_t)byte[3] << 24);
        crc = table[7][low & 0xff] ^ table[6][low >> 8 & 0xff] ^ table[5][low >> 16 & 0xff] ^ table[4][low >> 24] ^
              table[3][byte[4]] ^ table[2][byte[5]] ^ table[1][byte[6]] ^ table[0][byte[7]];
    }
    for (; len > 0; byte++, len--) crc = crc >> 8 ^ table[0][(crc ^ *byte) & 0xff];
    return ~crc;
}
