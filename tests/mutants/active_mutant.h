// The number of the mutant that is on, for mutated files that are included inside namespaces.
#pragma once

extern int attest_active_mutant;
