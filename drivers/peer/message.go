package peer

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// Protocol is the version of the protocol. Nodes of different versions refuse each other.
// With version 1, a large file was owned as a whole.
const Protocol = 2

// The paths of requests.
const (
	filePath = "/v1/file" // a range of a file
	pingPath = "/v1/ping" // whether the node is alive, and what one request to it waits for
	infoPath = "/v1/info" // an Info
)

const (
	block = drivers.ChecksumBlock

	// maxRange is the largest range that a request may have.
	maxRange = 8 << 20

	// maxHeader bounds the header of a request or an answer, and maxName the name of a file, which
	// takes up to three times as much there.
	maxHeader = 64 << 10
	maxName   = 16 << 10

	// maxBody bounds the body of an answer that is not of a file.
	maxBody = 64 << 10
)

// The header fields of the protocol, besides Range, If-Match, Content-Range and ETag. Each has words
// that are separated by spaces, since the time for a small file depends on the number of fields.
const (
	// hRequest has the version of the protocol, the dataset, the hash of the roster, the sender, the
	// destination, the instance of the destination, the rank, the nonce, the expiry in milliseconds
	// since 1970, and the MAC.
	hRequest = "Milkweed-Request"

	// hAnswer has the version of the protocol, the clock of the server as the expiry, the state of
	// the request that a ping names or, with status 428, the instance of the server, the CRC-32C of
	// each block, big-endian and in base64, and the MAC.
	hAnswer = "Milkweed-Answer"
)

// noMAC is the word in place of a MAC if there is no secret.
const noMAC = "-"

// protocol is Protocol as headers have it.
var protocol = strconv.Itoa(Protocol)

// A request is a request as it is sent.
type request struct {
	path     string
	name     string // of the file; of a ping: the nonce of the request that it asks about
	rng      string // Range
	version  string // If-Match
	dataset  string
	roster   string
	from, to string
	instance string // of to, as its nonces begin; "" if the sender does not know it
	rank     string
	nonce    string
	expiry   string
}

// requestWords is the number of words of hRequest without the MAC.
const requestWords = 9

// words returns hRequest without the MAC.
func (r *request) words() string {
	return strings.Join([]string{protocol, url.QueryEscape(r.dataset), r.roster, url.QueryEscape(r.from), url.QueryEscape(r.to),
		r.instance, r.rank, r.nonce, r.expiry}, " ")
}

// mac returns the MAC of the request.
func (r *request) mac(s *Secret) string {
	if s == nil {
		return noMAC
	}
	return s.mac("request", http.MethodGet, r.path, r.name, r.rng, r.version, r.words())
}

// url returns the URL of the request at a server.
func (r *request) url(address string) *url.URL {
	return &url.URL{Scheme: "http", Host: address, Path: r.path, RawQuery: "name=" + url.QueryEscape(r.name)}
}

// header returns the header of the request with a MAC.
func (r *request) header(mac string) http.Header {
	h := http.Header{hRequest: {r.words() + " " + mac}, "User-Agent": {""}}
	if r.version != "" {
		h["Range"], h["If-Match"] = []string{r.rng}, []string{r.version}
	}
	return h
}

// parseRequest is the inverse of url and header. It does not interpret the fields.
func parseRequest(path string, query url.Values, h http.Header) (r *request, mac string, err error) {
	words := strings.Split(h.Get(hRequest), " ")
	if words[0] != protocol {
		return nil, "", otherVersion(words[0])
	}
	if len(words) != requestWords+1 {
		return nil, "", fmt.Errorf("%s has %d words", hRequest, len(words))
	}
	for _, i := range []int{1, 3, 4} {
		if words[i], err = url.QueryUnescape(words[i]); err != nil {
			return nil, "", fmt.Errorf("%s: %w", hRequest, err)
		}
	}
	return &request{
		path: path, name: query.Get("name"), rng: h.Get("Range"), version: h.Get("If-Match"),
		dataset: words[1], roster: words[2], from: words[3], to: words[4], instance: words[5], rank: words[6], nonce: words[7], expiry: words[8],
	}, words[9], nil
}

// An otherVersion is the error for a message of another version of the protocol.
type otherVersion string

func (v otherVersion) Error() string {
	return fmt.Sprintf("version %q of the protocol, not %d", string(v), Protocol)
}

// An answerLine is the content of hAnswer.
type answerLine struct {
	clock string
	state string
	sums  string
	mac   string
}

// words returns hAnswer without the MAC.
func (a *answerLine) words() string {
	return strings.Join([]string{protocol, a.clock, a.state, a.sums}, " ")
}

// proof returns the MAC of an answer to r. It covers all of r: each node numbers its requests to each
// other node from 1, so that nonces differ between requests to one node only. h has the other fields
// of the answer. body is that of an answer other than a range of a file, whose content the checksums
// cover.
func (a *answerLine) proof(s *Secret, r *request, status int, h http.Header, body string) string {
	if s == nil {
		return noMAC
	}
	return s.mac("answer", r.path, r.name, r.rng, r.version, r.words(), strconv.Itoa(status), h.Get("Content-Range"), h.Get("Content-Length"), h.Get("ETag"), a.words(), body)
}

// parseAnswerLine parses hAnswer.
func parseAnswerLine(h string) (*answerLine, error) {
	words := strings.Split(h, " ")
	if words[0] != protocol {
		return nil, otherVersion(words[0])
	}
	if len(words) != 5 {
		return nil, fmt.Errorf("%s has %d words", hAnswer, len(words))
	}
	return &answerLine{words[1], words[2], words[3], words[4]}, nil
}

// A span is a range of a file: whole blocks, or blocks to the end of the file.
type span struct{ off, n int64 }

// rangeHeader returns the value of Range.
func (s span) rangeHeader() string { return fmt.Sprintf("bytes=%d-%d", s.off, s.off+s.n-1) }

// parseRange parses a value of Range.
func parseRange(h string) (span, error) {
	text, ok := strings.CutPrefix(h, "bytes=")
	s, err := parseSpan(text)
	if !ok || err != nil || s.off%block != 0 || s.n > maxRange {
		return span{}, fmt.Errorf("range %q: want bytes=A-B, of at most %d bytes from a multiple of %d", h, maxRange, block)
	}
	return s, nil
}

// parseSpan parses "A-B", of the first and the last byte.
func parseSpan(text string) (span, error) {
	a, b, _ := strings.Cut(text, "-")
	first, err := parseNumber(a)
	if err != nil {
		return span{}, err
	}
	last, err := parseNumber(b)
	if err != nil {
		return span{}, err
	}
	if last < first || last-first+1 <= 0 {
		return span{}, errors.New("the range ends before it begins")
	}
	return span{first, last - first + 1}, nil
}

// parseNumber parses a decimal number without a sign.
func parseNumber(text string) (int64, error) {
	n, err := strconv.ParseUint(text, 10, 63)
	return int64(n), err
}

// contentRange returns the value of Content-Range for a file of size bytes.
func (s span) contentRange(size int64) string {
	return fmt.Sprintf("bytes %d-%d/%d", s.off, s.off+s.n-1, size)
}

// parseContentRange parses a value of Content-Range.
func parseContentRange(h string) (s span, size int64, err error) {
	text, ok := strings.CutPrefix(h, "bytes ")
	text, total, found := strings.Cut(text, "/")
	if !ok || !found {
		return span{}, 0, fmt.Errorf("content range %q", h)
	}
	if s, err = parseSpan(text); err == nil {
		size, err = parseNumber(total)
	}
	return s, size, err
}

// versionTag returns the value of If-Match and ETag for the version that info describes.
func versionTag(info drivers.Info) string {
	return fmt.Sprintf(`"%d %d.%09d %s"`, info.Size, info.Mtime.Unix(), info.Mtime.Nanosecond(), url.QueryEscape(info.Version))
}

// parseVersionTag is the inverse of versionTag. The Info describes a regular file without a name.
func parseVersionTag(tag string) (drivers.Info, error) {
	fail := func() (drivers.Info, error) {
		return drivers.Info{}, fmt.Errorf("version %q: want \"SIZE SECONDS.NANOSECONDS VERSION\"", tag)
	}
	if len(tag) < 2 || tag[0] != '"' || tag[len(tag)-1] != '"' {
		return fail()
	}
	words := strings.Split(tag[1:len(tag)-1], " ")
	if len(words) != 3 {
		return fail()
	}
	size, err := parseNumber(words[0])
	seconds, nanos, _ := strings.Cut(words[1], ".")
	sec, err1 := strconv.ParseInt(seconds, 10, 64)
	nsec, err2 := strconv.ParseUint(nanos, 10, 32)
	version, err3 := url.QueryUnescape(words[2])
	if errors.Join(err, err1, err2, err3) != nil || nsec >= 1e9 {
		return fail()
	}
	return drivers.Info{Mode: regular, Size: size, Mtime: time.Unix(sec, int64(nsec)), Version: version}, nil
}

// regular is the type of a regular file in Info.Mode.
const regular = 0o100000

// blocksOf returns the number of blocks of n bytes.
func blocksOf(n int64) int64 { return (n + block - 1) / block }

// encodeChecksums returns the word of hAnswer for checksums.
func encodeChecksums(sums []uint32) string {
	b := make([]byte, 0, 4*len(sums))
	for _, sum := range sums {
		b = binary.BigEndian.AppendUint32(b, sum)
	}
	return base64.StdEncoding.EncodeToString(b)
}

// parseChecksums is the inverse of encodeChecksums, for n blocks.
func parseChecksums(h string, n int64) ([]uint32, error) {
	if n < 0 || n > maxRange/block || len(h) > 2*4*maxRange/block {
		return nil, errors.New("too many checksums")
	}
	b, err := base64.StdEncoding.DecodeString(h)
	if err != nil || int64(len(b)) != 4*n {
		return nil, fmt.Errorf("checksums of %d blocks: got %q", n, h)
	}
	sums := make([]uint32, n)
	for i := range sums {
		sums[i] = binary.BigEndian.Uint32(b[4*i:])
	}
	return sums, nil
}

// timestamp returns t as a header has it.
func timestamp(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }

// parseTimestamp is the inverse of timestamp.
func parseTimestamp(h string) (time.Time, error) {
	ms, err := parseNumber(h)
	return time.UnixMilli(ms), err
}
