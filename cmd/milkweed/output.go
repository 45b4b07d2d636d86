package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/dustin/go-humanize"

	"github.com/milkweedfs/milkweed/cmd/internal/paths"
)

// printJSON prints v as JSON on one line.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// size formats a number of bytes, as in "1.5 GiB".
func size(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

// count formats a number with commas.
func count(n int64) string { return humanize.Comma(n) }

// plural formats a number of things, as in "1 retry" and "2,000 retries".
func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + many
}

// files formats a number of files.
func files(n int64) string { return plural(n, "file", "files") }

// percent formats the share that n is of total.
func percent(n, total int64) string {
	if total <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100*float64(n)/float64(total))
}

// text is paths.Printable.
func text(path string) string { return paths.Printable(path) }

// visible replaces what a terminal would obey. It is for texts of a daemon, which may be that of a user whom nobody
// trusts.
func visible(r rune) rune {
	if unicode.IsControl(r) && r != '\n' && r != '\t' {
		return unicode.ReplacementChar
	}
	return r
}

// byName lists counts in the order of their names, as in "900 ram, 100 source".
func byName(counts map[string]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, count(counts[name])+" "+name)
	}
	return strings.Join(parts, ", ")
}
