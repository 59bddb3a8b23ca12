/* Where an explanation of a failure goes. */
#ifndef LRNETS_REPORT_H
#define LRNETS_REPORT_H

#include <stddef.h>
#include <stdint.h>

typedef struct report {
    char *text;
    size_t size;
    int32_t step; /* that is looked at; -1: none */
} report;

/* Write it down; always 1. */
int lrn_wrong(const report *report, const char *form, ...);

#endif
