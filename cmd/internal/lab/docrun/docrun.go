// Package docrun runs the commands in a page of Markdown, for tests, and compares what they print
// with what the page shows.
//
// A page has fenced blocks. Those with the info string sh are commands: one bash session runs all
// of them, in their order, and ends at the first that fails. A block with the info string text
// shows the output, on standard output and standard error, of the block sh before it; see Match.
// All other blocks are for the reader only.
package docrun

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// A Page is a page of Markdown.
type Page struct {
	name   string // its path in the repository
	lines  []string
	blocks []block
}

// A block is a block sh.
type block struct {
	first, last int    // the numbers of the lines of its fences, from 1
	shown       string // the content of the block text after it
	showLine    int    // the number of the first line of shown; 0 if there is no such block
}

// shells are the info strings with which a block of commands would not be run, or its prompts
// would be commands.
var shells = map[string]bool{"": true, "bash": true, "shell": true, "console": true, "shell-session": true, "zsh": true, "sh-session": true}

var fence = regexp.MustCompile("^(\\s*)(```+|~~~+)\\s*(\\S*)")

// Parse parses a page. name is its path, for errors. It returns an error for a block whose
// commands would not be run, and for a block text without commands before it.
func Parse(name, text string) (*Page, error) {
	p := &Page{name: name, lines: strings.Split(text, "\n")}
	var errs []error
	bad := func(n int, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s:%d: %s", name, n, fmt.Sprintf(format, args...)))
	}
	begun, info := 0, "" // of the block that the loop is in
	follows := false     // only blank lines are between the last block sh and this line
	for i, line := range p.lines {
		n := i + 1
		m := fence.FindStringSubmatch(line)
		switch {
		case m == nil && begun == 0:
			follows = follows && strings.TrimSpace(line) == ""
		case m == nil && info == "sh" && strings.HasPrefix(line, "$ "):
			bad(n, "a command has a prompt")
		case m == nil:
		case m[1] != "" || m[2] != "```":
			bad(n, "a fence is not ``` at the beginning of a line")
		case begun == 0:
			begun, info = n, m[3]
			switch {
			case shells[info]:
				bad(n, "a block has the info string %q; that of commands is sh, and that of their output text", info)
			case info == "text" && !follows:
				bad(n, "a block text does not follow a block sh")
			}
		case m[3] != "":
			bad(n, "the block that begins in line %d has no end", begun)
		default:
			if info == "sh" {
				p.blocks = append(p.blocks, block{first: begun, last: n})
			}
			if info == "text" && follows {
				b := &p.blocks[len(p.blocks)-1]
				b.showLine, b.shown = begun+1, strings.Join(p.lines[begun:i], "\n")
			}
			begun, follows = 0, info == "sh"
		}
	}
	if begun != 0 {
		bad(begun, "the block has no end")
	}
	if len(p.blocks) > 0 && p.blocks[0].first == 1 {
		bad(1, "the page begins with commands")
	}
	return p, errors.Join(errs...)
}

// Commands returns the number of blocks of commands.
func (p *Page) Commands() int { return len(p.blocks) }

// prologue is the first line of the script. When a command fails, the session prints a mark with
// the command and its line.
const prologue = `set -euo pipefail; trap 'printf "\036%d %s\036" "$LINENO" "$BASH_COMMAND"' ERR`

// Script returns the script of the session. Its lines have the numbers that they have in the page.
// At the end of each block it prints a mark with the number of the last line.
func (p *Page) Script() string {
	script := make([]string, len(p.lines))
	for _, b := range p.blocks {
		copy(script[b.first:b.last-1], p.lines[b.first:b.last-1])
		script[b.last-1] = fmt.Sprintf(`printf '\036%d\036'`, b.last)
	}
	script[0] = prologue
	return strings.Join(script, "\n") + "\n"
}

// Words returns the command that runs the script. Its messages begin with the path of the page.
func (p *Page) Words() []string { return []string{"bash", "-c", p.Script(), p.name} }

// RunOn runs the session in a bash that reads its script from standard input, such as bash -s on
// another machine. It returns the output, and the error of Check.
func (p *Page) RunOn(bash *exec.Cmd) (output string, err error) {
	var b bytes.Buffer
	bash.Stdin, bash.Stdout, bash.Stderr = strings.NewReader(p.Script()), &b, &b
	err = bash.Run()
	return mark.ReplaceAllString(b.String(), ""), p.Check(b.String(), err)
}

// mark matches what the script prints at the end of a block, and when a command fails.
var mark = regexp.MustCompile("(?s)\x1e(\\d+)( .*?)?\x1e")

// Check examines the output of the script, on standard output and standard error together, and the
// error of its process. It returns an error that names the line of the command that failed, or of
// each output that differs from the one shown.
func (p *Page) Check(output string, err error) error {
	rest := output
	var errs []error
	for _, b := range p.blocks {
		m := mark.FindStringSubmatchIndex(rest)
		if m == nil {
			return errors.Join(append(errs, fmt.Errorf("%s:%d: this block did not end: %w; output:\n%s", p.name, b.first, orUnknown(err), rest))...)
		}
		printed := rest[:m[0]]
		line, _ := strconv.Atoi(rest[m[2]:m[3]])
		if m[4] >= 0 {
			command := strings.TrimSpace(rest[m[4]:m[5]])
			return errors.Join(append(errs, fmt.Errorf("%s:%d: this failed: %s: %w; output of the block:\n%s", p.name, line, command, orUnknown(err), printed+mark.ReplaceAllString(rest[m[1]:], "")))...)
		}
		if line != b.last {
			return errors.Join(append(errs, fmt.Errorf("%s:%d: this block was not run; output:\n%s", p.name, b.first, printed))...)
		}
		if difference := Match(b.shown, printed); b.showLine > 0 && difference != "" {
			errs = append(errs, fmt.Errorf("%s:%d: the output differs: %s; output:\n%s", p.name, b.showLine, difference, printed))
		}
		rest = rest[m[1]:]
	}
	if err != nil {
		errs = append(errs, fmt.Errorf("%s: after the last block: %w; output:\n%s", p.name, err, rest))
	}
	return errors.Join(errs...)
}

func orUnknown(err error) error {
	if err == nil {
		return errors.New("the session ended without an error")
	}
	return err
}

// link matches a link of Markdown to something that is not a URL.
var link = regexp.MustCompile(`\]\(([^)\s:]+)\)`)

// Links returns the links of a document to files, and to headings, with their lines. It ignores
// those in blocks. A link is a path relative to the directory of the document, with or without an
// anchor.
func Links(text string) map[string]int {
	links, code := make(map[string]int), false
	for i, line := range strings.Split(text, "\n") {
		if fence.MatchString(line) {
			code = !code
		}
		for _, m := range link.FindAllStringSubmatch(line, -1) {
			if !code {
				links[m[1]] = i + 1
			}
		}
	}
	return links
}

var (
	heading  = regexp.MustCompile(`^#+ +(.*?)\s*$`)
	linked   = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	noAnchor = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// Anchors returns the anchors of the headings of a document, as GitHub makes them.
func Anchors(text string) map[string]bool {
	anchors, code := make(map[string]bool), false
	for line := range strings.SplitSeq(text, "\n") {
		if fence.MatchString(line) {
			code = !code
		}
		m := heading.FindStringSubmatch(line)
		if m == nil || code {
			continue
		}
		words := linked.ReplaceAllString(m[1], "$1")
		anchor := strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(words), ""), " ", "-")
		for n := 1; anchors[anchor]; n++ { // the second of two equal headings has a number
			anchor = fmt.Sprintf("%s-%d", strings.TrimSuffix(anchor, fmt.Sprintf("-%d", n-1)), n)
		}
		anchors[anchor] = true
	}
	return anchors
}

// Target splits a link of the document from into the path of the file, relative to the root of the
// repository, and the anchor.
func Target(from, link string) (file, anchor string) {
	file, anchor, _ = strings.Cut(link, "#")
	if file == "" {
		return from, anchor
	}
	return path.Join(path.Dir(from), file), anchor
}
