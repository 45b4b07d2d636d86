package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
)

// sample returns count of the sites, or all of them if there are fewer, in random order. It takes
// equally many of each kind, until a kind has no more.
func sample(sites []mutant, seed uint64, count int) []mutant {
	byKind := make(map[string][]mutant)
	for _, m := range shuffled(sites, fmt.Sprint(seed, " of a kind ")) {
		byKind[m.Kind] = append(byKind[m.Kind], m)
	}
	var taken []mutant
	for i := 0; len(taken) < min(count, len(sites)); i++ {
		for _, kind := range kinds {
			if i < len(byKind[kind]) && len(taken) < count {
				taken = append(taken, byKind[kind][i])
			}
		}
	}
	return shuffled(taken, fmt.Sprint(seed, " of all "))
}

// shuffled returns the mutants in a random order that the salt determines. The order of two mutants
// depends on their IDs only, so that a change of the source replaces few of the mutants of a seed.
func shuffled(mutants []mutant, salt string) []mutant {
	ranks := make(map[string]string)
	for _, m := range mutants {
		sum := sha256.Sum256([]byte(salt + m.ID))
		ranks[m.ID] = string(sum[:])
	}
	return slices.SortedFunc(slices.Values(mutants), func(a, b mutant) int { return strings.Compare(ranks[a.ID], ranks[b.ID]) })
}

// draw returns the first n candidates that compile and are not equivalent to the source. It prints
// those that it passes over.
func draw(candidates []mutant, n int, equivalent map[string]string, out io.Writer) ([]mutant, error) {
	var drawn []mutant
	for _, m := range candidates {
		if len(drawn) == n {
			break
		}
		reason, replaced := equivalent[m.ID]
		if replaced {
			reason = "equivalent: " + reason
		} else if err := m.compile(); err != nil {
			reason, replaced = "does not compile: "+err.Error(), true
		}
		if replaced {
			fmt.Fprintf(out, "%v    replaced: %s\n", m, reason)
		} else {
			drawn = append(drawn, m)
		}
	}
	if len(drawn) < n {
		return nil, fmt.Errorf("only %d of %d candidates can be run, not %d", len(drawn), len(candidates), n)
	}
	return drawn, nil
}

// readEquivalent reads the list of equivalent mutants: ID to reason. An ID in a package of the sites
// must be one of them, because the function that it names may have changed.
func readEquivalent(file string, sites []mutant) (map[string]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	ids, dirs := make(map[string]bool), make(map[string]bool)
	for _, m := range sites {
		ids[m.ID], dirs[path.Dir(m.File)] = true, true
	}
	reasons := make(map[string]string)
	for i, line := range slices.Collect(strings.Lines(string(text))) {
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, reason, _ := strings.Cut(line, "\t")
		parts := strings.Split(id, ":")
		if len(parts) != 4 || strings.TrimSpace(reason) == "" {
			return nil, fmt.Errorf("%s:%d: not an ID, a tab and a reason", file, i+1)
		}
		if dirs[path.Dir(parts[1])] && !ids[id] {
			return nil, fmt.Errorf("%s:%d: there is no mutant %s", file, i+1, id)
		}
		reasons[id] = reason
	}
	return reasons, nil
}
