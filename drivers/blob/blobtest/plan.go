package blobtest

import (
	"cmp"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// A Fault is something that goes wrong with a request.
type Fault string

// What can go wrong. A Fault that a request cannot have, such as half a body
// where there is none, leaves it alone.
const (
	// The connection.

	Reset     Fault = "reset"             // is reset before any byte of the answer
	ResetBody Fault = "reset in the body" // is reset after some of the body
	Truncated Fault = "truncated body"    // is closed, in good order, after some of the body

	// The answer, which is the Proxy's own. Its text has Message in it.

	Unavailable  Fault = "503"                  // without Retry-After
	RetryAfter   Fault = "503 with Retry-After" // of Plan.RetryAfter
	TooMany      Fault = "429"
	Forbidden    Fault = "403"
	NotFound     Fault = "404"
	Precondition Fault = "412"

	// The answer of the server.

	Late        Fault = "late"         // it comes Plan.Lateness later
	Slow        Fault = "slow body"    // it comes at Plan.SlowRate
	ShortLength Fault = "short length" // Content-Length says about half of the bytes that come
	StaleETag   Fault = "stale ETag"   // it has the ETag, and the generation, of another version
)

// Message is in the text of each error that a Proxy makes up.
const Message = "This is a fault of the plan."

// answers are the faults that are an answer: its status, and the name that the
// vendors have for it.
var answers = map[Fault]struct {
	status int
	code   string
}{
	Unavailable:  {http.StatusServiceUnavailable, "SlowDown"},
	RetryAfter:   {http.StatusServiceUnavailable, "SlowDown"},
	TooMany:      {http.StatusTooManyRequests, "TooManyRequests"},
	Forbidden:    {http.StatusForbidden, "AccessDenied"},
	NotFound:     {http.StatusNotFound, "NoSuchKey"},
	Precondition: {http.StatusPreconditionFailed, "PreconditionFailed"},
}

// A Plan is what a Proxy does to requests. The zero Plan does nothing.
type Plan struct {
	// What is done to all requests.

	Latency  time.Duration // each request waits this long before it is sent on
	Rate     int64         // bytes per second of all bodies together; 0 is no limit
	ConnRate int64         // and of the bodies on one connection

	// What is done to some. The same Seed does the same to the same order of
	// those that Match.

	Seed   uint64
	Match  func(*http.Request) bool // which requests; nil is all
	Jitter time.Duration            // they wait up to this much longer
	Faults map[Fault]float64        // how probable each is; together at most 1

	// What the faults need.

	RetryAfter time.Duration // for RetryAfter, in whole seconds
	Lateness   time.Duration // for Late
	SlowRate   int64         // for Slow: bytes per second
}

// A plan is a Plan in use.
type plan struct {
	Plan
	faults  []Fault       // those that there are, in order
	matched atomic.Uint64 // requests so far
}

func newPlan(p Plan) *plan {
	var sum float64
	for fault, chance := range p.Faults {
		if chance < 0 {
			panic(fmt.Sprintf("blobtest: the probability of %s is %v", fault, chance))
		}
		sum += chance
	}
	if sum > 1+1e-9 {
		panic(fmt.Sprintf("blobtest: the probabilities of all faults are %v together", sum))
	}
	p.Faults = maps.Clone(p.Faults)
	return &plan{Plan: p, faults: slices.Sorted(maps.Keys(p.Faults))}
}

// A fate is what happens to one request.
type fate struct {
	fault   Fault         // or ""
	latency time.Duration // before it is sent on
	where   float64       // from 0 to 1: how far into a body
}

// draw decides about a request.
func (p *plan) draw(r *http.Request) fate {
	f := fate{latency: p.Latency}
	if p.Match != nil && !p.Match(r) {
		return f
	}
	random := rand.New(rand.NewPCG(p.Seed, p.matched.Add(1)))
	at := random.Float64()
	f.latency += time.Duration(random.Float64() * float64(p.Jitter))
	f.where = random.Float64()
	for _, fault := range p.faults {
		if at -= p.Faults[fault]; at < 0 {
			f.fault = fault
			break
		}
	}
	if f.fault == Late {
		f.latency += p.Lateness
	}
	return f
}

// A RequestKind is what a request asks for.
type RequestKind int

// The kinds of requests.
const (
	Other RequestKind = iota
	Get               // the content of an object, or a part of it
	List              // names
	Head              // attributes of an object
)

// KindOf tells what a request asks for, in any of the three protocols. What
// only describes one object is Head, whatever its method.
func KindOf(r *http.Request) RequestKind {
	query := r.URL.Query()
	switch {
	case r.Method == http.MethodHead:
		return Head
	case r.Method != http.MethodGet:
		return Other
	case query.Get("comp") == "list" || query.Has("list-type"):
		return List
	case query.Has("comp") || query.Has("restype"):
		return Other
	}
	if elems := strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/storage/v1/"), "/"); elems[0] == "b" {
		return kindOfJSON(elems, query.Get("alt"))
	}
	if _, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/"); key != "" {
		return Get
	}
	return Other
}

// kindOfJSON is KindOf for a GET of Google's JSON API, whose paths are
// b/BUCKET/o and b/BUCKET/o/KEY.
func kindOfJSON(elems []string, alt string) RequestKind {
	switch {
	case len(elems) < 3 || elems[2] != "o":
		return Other
	case len(elems) == 3:
		return List
	case alt == "media":
		return Get
	}
	return Head
}

// ObjectGets matches the requests for the content of objects.
func ObjectGets(r *http.Request) bool { return KindOf(r) == Get }

// answer sends a fault that is an answer of its own, as the protocol of the
// request has it.
func answer(w http.ResponseWriter, r *http.Request, fault Fault, retryAfter time.Duration) {
	a := answers[fault]
	if fault == RetryAfter {
		w.Header().Set("Retry-After", strconv.Itoa(int(cmp.Or(retryAfter, time.Second).Seconds())))
	}
	body, contentType := errorXML(a.code), "application/xml"
	if strings.HasPrefix(r.URL.Path, "/storage/v1/") || strings.HasPrefix(r.URL.Path, "/b/") {
		body, contentType = errorJSON(a.status, a.code), "application/json"
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Header().Set("x-ms-error-code", a.code)
	w.WriteHeader(a.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // a client that has gone needs no answer
	}
}

// errorXML is an error of S3, Azure, and Google's XML API.
func errorXML(code string) []byte {
	return must(xml.Marshal(struct {
		XMLName       xml.Name `xml:"Error"`
		Code, Message string
	}{Code: code, Message: Message}))
}

// errorJSON is an error of Google's JSON API.
func errorJSON(status int, reason string) []byte {
	type object = map[string]any
	return must(json.Marshal(object{"error": object{
		"code": status, "message": Message, "errors": []object{{"reason": reason, "message": Message}},
	}}))
}

// must is for values that cannot fail to be marshalled.
func must(data []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return data
}
