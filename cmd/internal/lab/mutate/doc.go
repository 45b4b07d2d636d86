// Mutate plants faults into the source of Milkweed, one at a time, and shows which of them the tests
// find.
//
// Usage, in the root of the repository:
//
//	mutate [flags]
//
// A mutant is the source with one fault. There are five kinds:
//
//	negate    the condition of an if or for is negated
//	unlock    a statement x.Unlock(), x.RUnlock() or a defer of one is removed
//	ignore    an if err != nil { ... return } is never taken
//	swap      two adjacent arguments of the same type are swapped
//	offbyone  an integer literal is increased by one; < becomes <=, and > becomes >=
//
// The sites are in the packages of -packages, in the files that a build for linux/amd64 has. The seed
// selects -count candidates among them, as many of each kind, and puts them in an order. The first
// -draw candidates are run. One that does not compile, or that -equivalent names, is replaced by the
// next candidate. The same seed and the same source give the same mutants, and a small change of the
// source replaces few of them.
//
// The ID of a mutant is kind:file:function:ordinal, such as negate:fs/node.go:node.Open:2, the second
// condition in that function. A change of another function does not change it.
//
// The go command reads a mutant through -overlay, which GOFLAGS passes also to the go commands that
// tests run. The files of the repository are not changed. A mutant is found if a step fails or
// exceeds -timeout, or 3 minutes if that is less for the first step. There are two steps:
//
//	quick  the shell command of -quick, the tests that make test has of the package with the fault
//	test   the shell command of -test, unless quick has found the mutant
//
// First, both run without a mutant and must pass: if they did not, each mutant would be found.
// -baseline=false omits this. After each step, mutate kills all processes that the step has left,
// and removes its files and mounts in $TMPDIR.
//
// The result of each mutant is one JSON line in -results, build/mutate/seed-N.jsonl by default. The
// output of its steps is in the folder of the same name without .jsonl. With -resume, a mutant is not
// run if -results has a line for it with the same -test. The last lines of the output are a table of
// all results and their sum, such as
//
//	found 18 of 20 by make test
//
// The file of -equivalent lists mutants that no test can find because nothing observable differs. A
// line is an ID, a tab and the reason. Lines that begin with # are comments.
//
// The exit code is 0 if at least -want mutants were found, 1 if fewer were found or if mutate failed,
// and 2 for a wrong flag.
//
// # Examples
//
//	go run ./cmd/internal/lab/mutate -list
//	go run ./cmd/internal/lab/mutate -seed 7 -resume
//	go run ./cmd/internal/lab/mutate -packages fs -draw 5 -want 4 -test 'go test -race ./fs ./cmd/milkweed'
//
// # Limitations
//
// A test that fails without a fault from time to time finds mutants by chance; the table names the
// test. On a busy machine, tests reach their time-outs, which count as found. Network namespaces and
// loop devices that a killed test has left stay. Durations are not increased by one, because no test
// distinguishes time-outs of 30 s and 31 s.
package main
