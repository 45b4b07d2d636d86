package drivertest

import "testing"

// Size returns a size of a benchmark: full, which the documented results have, or small if the tests
// run with -short. That only checks that a benchmark runs, as `make check-bench` does. A size is a number
// of files, a duration, or the list of the sizes that are compared, for example. Flags must have been parsed.
func Size[T any](full, small T) T {
	if testing.Short() {
		return small
	}
	return full
}
