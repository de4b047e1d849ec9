#include "coordinator/client/commands.h"

const struct command *const commands[] = {
    &command_sweep,
    &command_submit,
    &command_status,
    &command_watch,
    &command_cancel,
    &command_results,
    &command_workers,
    &command_keys,
    &command_policies,
    &command_calibrate,
    &command_generate,
    NULL,
};
