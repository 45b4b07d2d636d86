// Package redact replaces names in documents that a user gives to others: of files, directories, buckets
// and nodes. What is not known to be free of names is replaced.
package redact

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// A Redactor replaces names by pseudonyms. Of one Redactor, equal names have equal pseudonyms, so that a
// file can be followed through several documents. It can be used concurrently.
type Redactor struct{ key [32]byte }

// New returns a Redactor with pseudonyms of its own.
func New() *Redactor {
	r := new(Redactor)
	rand.Read(r.key[:])
	return r
}

// Name returns the pseudonym of a name without slashes.
func (r *Redactor) Name(name string) string {
	if name == "" || name == "." {
		return name
	}
	h := hmac.New(sha256.New, r.key[:])
	h.Write([]byte(name))
	return "~" + hex.EncodeToString(h.Sum(nil)[:5])
}

// schemes are those of the URLs that Milkweed uses. Another word before "://" may be a name.
var schemes = []string{"s3", "gs", "azblob", "http", "https"}

// Path replaces each component of a path or a URL, and what else may be in the text. The scheme of a URL
// stays if it is in schemes, and its options do not.
func (r *Redactor) Path(text string) string {
	scheme := ""
	if u, err := url.Parse(text); err == nil && slices.Contains(schemes, u.Scheme) && u.Host != "" {
		scheme, text = u.Scheme+"://", u.Host+u.Path
	}
	parts := strings.Split(text, "/")
	for i, p := range parts {
		parts[i] = r.Name(p)
	}
	return scheme + strings.Join(parts, "/")
}

// hidden stands for text that is left out.
const hidden = "(redacted)"

// causes are the texts of errors that have no names in them.
var causes = func() []string {
	all := []string{"context deadline exceeded", "context canceled", "i/o timeout", "no such host", "unexpected EOF", "certificate has expired"}
	for e := range syscall.Errno(200) {
		if text := e.Error(); e > 0 && !strings.HasPrefix(text, "errno ") {
			all = append(all, text)
		}
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	return all
}()

// Cause returns the cause in the text of an error, without the names before it. It is "" if the text
// ends in none that is known.
func Cause(text string) string {
	for _, c := range causes {
		if strings.HasSuffix(text, c) {
			return c
		}
	}
	return ""
}

// Error returns the cause in the text of an error, if it ends in one that is known.
func (r *Redactor) Error(text string) string {
	if c := Cause(text); c != "" {
		return hidden + ": " + c
	}
	if text == "" {
		return ""
	}
	return hidden
}

// JSON replaces the texts in a document of JSON: that at a path of keys, such as "tiers.name", is replaced by
// what replace returns. Arrays have no key of their own.
func (r *Redactor) JSON(document []byte, replace func(path, text string) string) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(texts(v, "", replace))
	return b.Bytes(), err
}

// texts returns v with its texts replaced.
func texts(v any, path string, replace func(path, text string) string) any {
	switch v := v.(type) {
	case string:
		return replace(path, v)
	case []any:
		for i := range v {
			v[i] = texts(v[i], path, replace)
		}
	case map[string]any:
		for key := range v {
			v[key] = texts(v[key], strings.TrimPrefix(path+"."+key, "."), replace)
		}
	}
	return v
}

// Log replaces what may be names in a log of package log/slog, in its format for text or JSON: the messages stay,
// and of the attributes numbers, durations, and those whose key is in public. Of errors the cause stays, and
// traces of goroutines stay. Other sentences are left out.
func (r *Redactor) Log(log []byte, public []string) []byte {
	var b bytes.Buffer
	for line := range strings.Lines(string(log)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "{") {
			b.WriteString(r.jsonLine(line, public))
		} else {
			b.WriteString(r.textLine(line, public))
		}
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// attribute returns what stays of an attribute.
func (r *Redactor) attribute(key, value string, public []string) string {
	switch {
	case slices.Contains([]string{"time", "level", "msg", "stack", "stacks"}, key), slices.Contains(public, key), isNumber(value):
		return value
	case slices.Contains([]string{"err", "error", "reason", "cause", "message", "value", "remedy"}, key):
		return r.Error(value)
	}
	return r.Path(value)
}

// number matches numbers, sizes and durations.
var number = regexp.MustCompile(`^[-+]?[0-9.]+ ?([kKMGTPE]?i?B|ns|µs|ms|s|m|h|[0-9.hmsµ]+)?%?$|^(true|false)$`)

func isNumber(value string) bool { return number.MatchString(value) }

func (r *Redactor) jsonLine(line string, public []string) string {
	out, err := r.JSON([]byte(line), func(path, text string) string {
		return r.attribute(path[strings.LastIndexByte(path, '.')+1:], text, public)
	})
	var compact bytes.Buffer
	if err != nil || json.Compact(&compact, out) != nil {
		return unknown(line)
	}
	return compact.String()
}

func (r *Redactor) textLine(line string, public []string) string {
	var out []string
	for rest := line; rest != ""; {
		key, after, ok := strings.Cut(rest, "=")
		if !ok || strings.ContainsAny(key, " \"") {
			return unknown(line)
		}
		value, quoted := "", strings.HasPrefix(after, `"`)
		if quoted {
			prefix, err := strconv.QuotedPrefix(after)
			if err != nil {
				return unknown(line)
			}
			value, _ = strconv.Unquote(prefix)
			rest = strings.TrimPrefix(after[len(prefix):], " ")
		} else {
			value, rest, _ = strings.Cut(after, " ")
		}
		if value = r.attribute(key, value, public); quoted || strings.ContainsAny(value, " \"=") {
			value = strconv.Quote(value)
		}
		out = append(out, key+"="+value)
	}
	return strings.Join(out, " ")
}

// trace matches the lines of a trace of goroutines.
var trace = regexp.MustCompile(`^goroutine [0-9]+ .*:$|^\t[^ ]+\.go:[0-9]+( \+0x[0-9a-f]+)?$|^created by [^ ]+( in goroutine [0-9]+)?$|` +
	`^[A-Za-z0-9_./*()\[\]·-]+\([0-9a-fx{}., ?]*\)$|^(rax|rbx|rcx|rdx|rdi|rsi|rbp|rsp|r[0-9]+|rip|rflags|cs|fs|gs) +0x[0-9a-f]+$`)

// unknown returns what stays of a line that is no record of a log.
func unknown(line string) string {
	if line == "" || trace.MatchString(line) {
		return line
	}
	return fmt.Sprintf("(redacted: a line of %d bytes)", len(line))
}
