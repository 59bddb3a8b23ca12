/* Explanations of failures. */
#include "report.h"

#include <stdarg.h>
#include <stdio.h>

int lrn_wrong(const report *r, const char *form, ...) {
    char problem[256];
    va_list arguments;
    va_start(arguments, form);
    vsnprintf(problem, sizeof problem, form, arguments);
    va_end(arguments);
    if (r->text && r->size) {
        if (r->step >= 0)
            snprintf(r->text, r->size, "step %d: %s", (int)r->step, problem);
        else
            snprintf(r->text, r->size, "%s", problem);
    }
    return 1;
}
