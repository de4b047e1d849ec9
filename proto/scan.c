#include "proto/scan.h"

#include <stdint.h>

/* One token: how many bytes of head and payload it has, and how many objects follow that belong to it. */
struct token {
    size_t bytes;
    uint64_t children;
    int container;
};

static uint64_t number_be(const unsigned char *byte, size_t width)
{
    uint64_t value = 0;
    for (size_t i = 0; i < width; i++) value = value << 8 | byte[i];
    return value;
}

/* Head of str, bin, array and map: the length field has `width` bytes after the type byte. */
static int token_sized(const unsigned char *byte, size_t left, size_t width, uint64_t children_per_count,
                       struct token *out)
{
    if (left < 1 + width) return -1;
    uint64_t count = number_be(byte + 1, width);
    out->bytes = 1 + width;
    if (children_per_count == 0) {
        if (count > left - out->bytes) return -1;
        out->bytes += (size_t)count;
    } else {
        out->container = 1;
        out->children = count * children_per_count;
    }
    return 0;
}

static const char *token_read(const unsigned char *byte, size_t left, struct token *out)
{
    static const unsigned char fixed[] = {4, 8, 1, 2, 4, 8, 1, 2, 4, 8}; /* ca..d3: floats, unsigned, signed */
    unsigned char type = byte[0];
    *out = (struct token){.bytes = 1};
    if (type <= 0x7f || type >= 0xe0 || type == 0xc0 || type == 0xc2 || type == 0xc3) return NULL;
    if (type <= 0x8f) {
        out->container = 1;
        out->children = 2u * (type & 0x0fu);
    } else if (type <= 0x9f) {
        out->container = 1;
        out->children = type & 0x0fu;
    } else if (type <= 0xbf) {
        out->bytes = 1 + (type & 0x1fu);
    } else if (type >= 0xca && type <= 0xd3) {
        out->bytes = 1u + fixed[type - 0xca];
    } else {
        int code;
        switch (type) {
        case 0xc4:
        case 0xd9:
            code = token_sized(byte, left, 1, 0, out);
            break;
        case 0xc5:
        case 0xda:
            code = token_sized(byte, left, 2, 0, out);
            break;
        case 0xc6:
        case 0xdb:
            code = token_sized(byte, left, 4, 0, out);
            break;
        case 0xdc:
            code = token_sized(byte, left, 2, 1, out);
            break;
        case 0xdd:
            code = token_sized(byte, left, 4, 1, out);
            break;
        case 0xde:
            code = token_sized(byte, left, 2, 2, out);
            break;
        case 0xdf:
            code = token_sized(byte, left, 4, 2, out);
            break;
        case 0xc1:
            return "the unused type byte c1";
        default:
            return "an extension type";
        }
        if (code != 0) return "a value longer than the bytes left";
    }
    if (out->bytes > left) return "a value longer than the bytes left";
    return NULL;
}

const char *scan_body(const void *body, size_t len, size_t *at)
{
    const unsigned char *byte = body;
    uint64_t open[SCAN_DEPTH_MAX + 1] = {1}; /* objects still to come at each depth */
    int depth = 0;
    uint64_t nodes = 1;
    *at = 0;
    for (;;) {
        while (open[depth] == 0) {
            if (depth == 0) return *at == len ? NULL : "bytes after the end";
            depth--;
        }
        if (*at == len) return "the end in the middle of a value";
        struct token token;
        const char *fault = token_read(byte + *at, len - *at, &token);
        if (fault != NULL) return fault;
        open[depth]--;
        if (token.container) {
            if (token.children > len - *at - token.bytes) return "a count beyond the bytes left";
            nodes += token.children;
            if (nodes > SCAN_NODES_MAX) return "more than 262144 values";
            if (depth == SCAN_DEPTH_MAX) return "nesting deeper than 8";
            open[++depth] = token.children;
        }
        *at += token.bytes;
    }
}
