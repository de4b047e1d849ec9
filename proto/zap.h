/* zap.h: the thread that answers libzmq's question "may this key in?" (ZeroMQ RFC 27). Internal to proto/. */
#ifndef KVF_PROTO_ZAP_H
#define KVF_PROTO_ZAP_H

#include "proto/key_file.h"

#define ZAP_DOMAIN "kvfleet"

struct zap;
/* Loads authorized/ and answers before it returns: to be called before the first bind of a server socket. One a
 * process: KVF_ECONFLICT otherwise. */
KVF_MUSTCHECK int zap_start(void *context, const char *key_folder, struct zap **out, struct kvf_err *err);
void zap_stop(struct zap **zap);
/* Reads authorized/ again; on an error the old keys stay. Thread-safe, as the next two. */
KVF_MUSTCHECK int zap_reload(struct zap *zap, struct kvf_err *err);
/* Role and name of a key that is let in now; 0: it is not. */
int zap_find(struct zap *zap, const char *key_z85, enum key_role *role, char name[64]);
/* Counts a refused message of this key and returns the new number. */
uint64_t zap_strike(struct zap *zap, const char *key_z85);
/* Handshakes refused so far. */
uint64_t zap_denied(struct zap *zap);

#endif
