// Package doctor examines a running mount and says what to change. Gather collects Facts about it,
// and Examine derives Findings from them.
package doctor

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// A Severity says how urgent a Finding is.
type Severity string

// The severities, the most urgent first.
const (
	Problem Severity = "problem" // something does not work, or data is at risk
	Warning Severity = "warning" // the mount works, and another setting or machine would serve the job better
	Note    Severity = "note"    // a fact that explains others; nothing has to change
)

// severities lists every Severity in the order of the output.
var severities = []Severity{Problem, Warning, Note}

// A Finding is one thing that was found.
type Finding struct {
	Severity Severity `json:"severity"`
	Subject  string   `json:"subject"`          // what it is about, such as "tier ssd"
	Seen     string   `json:"seen"`             // what is wrong, with the numbers that show it
	Remedy   string   `json:"remedy,omitempty"` // sentences: what to change
	See      string   `json:"see,omitempty"`    // a section of the documentation
}

// Sort orders findings by their severity, and otherwise leaves their order.
func Sort(findings []Finding) {
	slices.SortStableFunc(findings, func(a, b Finding) int {
		return slices.Index(severities, a.Severity) - slices.Index(severities, b.Severity)
	})
}

// Count returns the number of findings of a severity.
func Count(findings []Finding, s Severity) (n int) {
	for _, f := range findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

// writeLines writes text in lines, with a prefix on the first and another on the others.
func writeLines(b *strings.Builder, first, others, text string) {
	prefix := first
	for _, line := range wrap(text) {
		b.WriteString(prefix + line + "\n")
		prefix = others
	}
}

// wrapAt is the number of bytes in a line of text, unless one word has more.
const wrapAt = 76

// wrap divides text into lines.
func wrap(text string) (lines []string) {
	for word := range strings.FieldsSeq(text) {
		if last := len(lines) - 1; last >= 0 && len(lines[last])+1+len(word) <= wrapAt {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

// Write prints findings as text. The remedy of a finding is on the lines below it. Lines are wrapped
// for a terminal.
func Write(w io.Writer, findings []Finding) error {
	width := 0
	for _, f := range findings {
		width = max(width, len(f.Subject))
	}
	var b strings.Builder
	for _, f := range findings {
		first := fmt.Sprintf("%-7s  %-*s  ", f.Severity, width, f.Subject)
		indent := strings.Repeat(" ", len(Problem)+2+width+2)
		writeLines(&b, first, indent, f.Seen)
		writeLines(&b, indent+"→ ", indent+"  ", f.Remedy)
		if f.See != "" {
			writeLines(&b, indent+"  ", "", "See "+f.See+".")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
