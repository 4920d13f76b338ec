// A small JSON service: each request renders a page of records and compresses it, about 2 ms of CPU time and a megabyte of
// garbage. Go runs GOMAXPROCS threads at once, and its collector a quarter of them beside the idle ones.
//
//	PORT=8080 GOMAXPROCS=8 ./service
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"log"
	"math/rand"
	"net/http"
	"os"
)

type record struct {
	ID     int   `json:"id"`
	Values []int `json:"values"`
}

// The heap that the collector has to mark.
var kept = make(map[int][]record)

func page(seed int64) []record {
	random := rand.New(rand.NewSource(seed))
	records := make([]record, 40)
	for i := range records {
		values := make([]int, 40)
		for j := range values {
			values[j] = random.Intn(1_000_000)
		}
		records[i] = record{i, values}
	}
	return records
}

func main() {
	for i := range 2000 {
		kept[i] = page(int64(i))
	}
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		text, err := json.Marshal(page(int64(len(r.URL.Path))))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		var packed bytes.Buffer
		zip := gzip.NewWriter(&packed)
		zip.Write(text)
		zip.Close()
		w.Header().Set("Content-Encoding", "gzip")
		w.Write(packed.Bytes())
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), nil))
}
