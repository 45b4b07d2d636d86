package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

// printJSON prints v on one line, as jq and a script read it.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// size is a number of bytes as people read it.
func size(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

// count is a number with commas.
func count(n int64) string { return humanize.Comma(n) }

// files is a number of files.
func files(n int64) string {
	if n == 1 {
		return "1 file"
	}
	return count(n) + " files"
}

// percent is n of total.
func percent(n, total int64) string {
	if total <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100*float64(n)/float64(total))
}

// text is a path as a terminal can show it: a path may hold any bytes.
func text(path string) string {
	if q := strconv.Quote(path); len(q) != len(path)+2 || strings.Contains(path, "\uFFFD") {
		return q
	}
	return path
}

// byName lists counts as "900 ram, 100 source".
func byName(counts map[string]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, count(counts[name])+" "+name)
	}
	return strings.Join(parts, ", ")
}
