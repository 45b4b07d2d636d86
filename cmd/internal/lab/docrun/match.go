package docrun

import (
	"fmt"
	"regexp"
	"strings"
)

// The rule of Match, in the order of application.
var (
	clock    = regexp.MustCompile(`\d+:\d\d(:\d\d)?`)
	duration = regexp.MustCompile(`(\d+(\.\d+)?(h|ms|m|µs|s))+\b`)
	size     = regexp.MustCompile(`\b\d[\d.,]* ?[kKMGT]i?B\b`)
	number   = regexp.MustCompile(`\d+([.,]\d+)*`)
	rule     = regexp.MustCompile(`-{3,}|─{3,}`)
)

// normal replaces what may differ.
func normal(line string) string {
	line = clock.ReplaceAllString(line, "<time>")
	line = duration.ReplaceAllString(line, "<duration>")
	line = size.ReplaceAllString(line, "<size>")
	line = number.ReplaceAllStringFunc(line, func(n string) string {
		if strings.Trim(n, "0.,") == "" {
			return "<zero>"
		}
		return "<number>"
	})
	line = rule.ReplaceAllString(line, "<rule>")
	return strings.Join(strings.Fields(line), " ")
}

// Match compares the output of commands with the output that a page shows, and returns "" if the
// page is right, or else a description of the first difference.
//
// Each line shown is equal to a line of the output, with these exceptions. A number stands for any
// other number, except that 0 stands for 0 only. A duration stands for any duration, such as 1.2s
// for 35ms, also for 0s; a time of day for any time of day; and a size in a unit above the byte,
// such as 1.5 MiB, for any such size in any such unit. White space stands for any white space.
// Empty lines are ignored. "..." stands for any text in a line, with the blanks around it; alone in a line, for any number of
// lines.
func Match(shown, output string) string {
	want, got := nonEmpty(shown), nonEmpty(output)
	for len(want) > 0 {
		if want[0] == "..." {
			if want = want[1:]; len(want) == 0 {
				return ""
			}
			skipped := 0
			for skipped < len(got) && !matchLine(want[0], got[skipped]) {
				skipped++
			}
			if skipped == len(got) {
				return fmt.Sprintf("no line is like %q", want[0])
			}
			got = got[skipped:]
			continue
		}
		if len(got) == 0 {
			return fmt.Sprintf("it ends before %q", want[0])
		}
		if !matchLine(want[0], got[0]) {
			return fmt.Sprintf("%q is not like %q", got[0], want[0])
		}
		want, got = want[1:], got[1:]
	}
	if len(got) > 0 {
		return fmt.Sprintf("%q is not shown", got[0])
	}
	return ""
}

func nonEmpty(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

func matchLine(want, got string) bool {
	parts := strings.Split(normal(want), "...")
	for i, p := range parts {
		parts[i] = regexp.QuoteMeta(strings.TrimSpace(p))
	}
	return regexp.MustCompile("^" + strings.Join(parts, ".*") + "$").MatchString(normal(got))
}
