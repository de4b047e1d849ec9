/* lost_file.h: what a program says when a mapped model file is no longer there: shortened, or its disk failed.
 *
 * Model files are mapped, not read: a page that is gone is a SIGBUS at whatever instruction touches it, and no error
 * can be returned from there.
 */
#ifndef KVF_WORKER_LOST_FILE_H
#define KVF_WORKER_LOST_FILE_H

/* From now on a SIGBUS at a mapped model file ends the program with `exit_code` and one line that names program and
 * file; any other ends it as ever. For main only; `program` must outlive the process. */
void lost_file_catch(const char *program, int exit_code);

#endif
