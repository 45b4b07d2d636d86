package peer

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// Protocol is the version of the protocol. Nodes of different versions refuse each other.
const Protocol = 1

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

// The header fields of the protocol, besides Range, If-Match, Content-Range, ETag and
// Authorization.
const (
	hProtocol  = "Milkweed-Protocol"
	hDataset   = "Milkweed-Dataset" // query-escaped, as Milkweed-From and Milkweed-To
	hRoster    = "Milkweed-Roster"
	hFrom      = "Milkweed-From"
	hTo        = "Milkweed-To"
	hRank      = "Milkweed-Rank"
	hNonce     = "Milkweed-Nonce"     // instance and sequence number of the client, in hexadecimal digits
	hExpiry    = "Milkweed-Expiry"    // milliseconds since 1970
	hChecksums = "Milkweed-Checksums" // CRC-32C of each block, big-endian, in base64
	hClock     = "Milkweed-Clock"     // of the server, as Milkweed-Expiry
	hState     = "Milkweed-State"     // of the request that a ping names
	hProof     = "Milkweed-Proof"     // MAC of the answer
)

// authScheme begins the value of Authorization.
const authScheme = "Milkweed "

// A request is a request as it is sent.
type request struct {
	path     string
	name     string // of the file; of a ping: the nonce of the request that it asks about
	rng      string // Range
	version  string // If-Match
	protocol string
	dataset  string
	roster   string
	from, to string
	rank     string
	nonce    string
	expiry   string
}

// fields returns what the MAC of a request covers.
func (r *request) fields() []string {
	return []string{http.MethodGet, r.path, r.name, r.rng, r.version, r.protocol, r.dataset, r.roster,
		r.from, r.to, r.rank, r.nonce, r.expiry}
}

// url returns the URL of the request at a server.
func (r *request) url(address string) *url.URL {
	return &url.URL{Scheme: "http", Host: address, Path: r.path, RawQuery: "name=" + url.QueryEscape(r.name)}
}

// header returns the header of the request, with its MAC if there is a secret.
func (r *request) header(s *Secret) http.Header {
	h := make(http.Header, 16)
	set := func(key, value string) {
		if value != "" {
			h[key] = []string{value}
		}
	}
	set("Range", r.rng)
	set("If-Match", r.version)
	set(hProtocol, r.protocol)
	set(hDataset, url.QueryEscape(r.dataset))
	set(hRoster, r.roster)
	set(hFrom, url.QueryEscape(r.from))
	set(hTo, url.QueryEscape(r.to))
	set(hRank, r.rank)
	set(hNonce, r.nonce)
	set(hExpiry, r.expiry)
	if s != nil {
		set("Authorization", authScheme+s.mac("request", r.fields()...))
	}
	return h
}

// parseRequest is the inverse of url and header. It does not interpret the fields.
func parseRequest(path string, query url.Values, h http.Header) (*request, error) {
	r := &request{
		path: path, name: query.Get("name"), rng: h.Get("Range"), version: h.Get("If-Match"),
		protocol: h.Get(hProtocol), roster: h.Get(hRoster), rank: h.Get(hRank),
		nonce: h.Get(hNonce), expiry: h.Get(hExpiry),
	}
	for key, field := range map[string]*string{hDataset: &r.dataset, hFrom: &r.from, hTo: &r.to} {
		value, err := url.QueryUnescape(h.Get(key))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		*field = value
	}
	return r, nil
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
	fail := fmt.Errorf("version %q: want \"SIZE SECONDS.NANOSECONDS VERSION\"", tag)
	if len(tag) < 2 || tag[0] != '"' || tag[len(tag)-1] != '"' {
		return drivers.Info{}, fail
	}
	words := strings.Split(tag[1:len(tag)-1], " ")
	if len(words) != 3 {
		return drivers.Info{}, fail
	}
	size, err := parseNumber(words[0])
	seconds, nanos, _ := strings.Cut(words[1], ".")
	sec, err1 := strconv.ParseInt(seconds, 10, 64)
	nsec, err2 := strconv.ParseUint(nanos, 10, 32)
	version, err3 := url.QueryUnescape(words[2])
	if errors.Join(err, err1, err2, err3) != nil || nsec >= 1e9 {
		return drivers.Info{}, fail
	}
	return drivers.Info{Mode: regular, Size: size, Mtime: time.Unix(sec, int64(nsec)), Version: version}, nil
}

// regular is the type of a regular file in Info.Mode.
const regular = 0o100000

// blocksOf returns the number of blocks of n bytes.
func blocksOf(n int64) int64 { return (n + block - 1) / block }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum returns the checksum of a block.
func checksum(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

// encodeChecksums returns the value of Milkweed-Checksums.
func encodeChecksums(sums []uint32) string {
	b := make([]byte, 0, 4*len(sums))
	for _, sum := range sums {
		b = binary.BigEndian.AppendUint32(b, sum)
	}
	return base64.StdEncoding.EncodeToString(b)
}

// parseChecksums parses the value of Milkweed-Checksums, of n blocks.
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

// answerProof returns the MAC of an answer to the request with a nonce. body is that of an answer
// other than a range of a file, whose content the checksums cover.
func (s *Secret) answerProof(nonce string, status int, h http.Header, body string) string {
	return s.mac("answer", nonce, strconv.Itoa(status), h.Get(hProtocol), h.Get("Content-Range"), h.Get("Content-Length"),
		h.Get("ETag"), h.Get(hChecksums), h.Get(hClock), h.Get(hState), body)
}
